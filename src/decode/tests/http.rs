//! The registry over HTTP, against a server that answers by path.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::config::settings::RegistrySettings;
use crate::decode::SchemaId;
use crate::decode::registry::{HttpRegistry, ParsedSchema, Registry, RegistryError, SchemaText};

/// What the server does with a request.
#[derive(Clone)]
enum Reply {
    Status(u16, String),
    /// It reads the request and never answers.
    Silence,
    /// It cuts the connection in the middle of the body.
    Cut,
}

struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(replies: impl IntoIterator<Item = (&'static str, Reply)>) -> Self {
        let replies: BTreeMap<_, _> = replies.into_iter().collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, replies.clone(), seen.clone()));
            }
        });
        Self { address, requests }
    }

    fn registry(&self) -> HttpRegistry {
        self.registry_with(None, Duration::from_secs(30))
    }

    fn registry_with(&self, auth: Option<(&str, &str)>, timeout: Duration) -> HttpRegistry {
        let basic_auth = auth.map(|(user, password)| (user.to_owned(), SecretString::from(password)));
        let url = format!("{}/base", self.address);
        HttpRegistry::new(&RegistrySettings { url, basic_auth, timeout, unknown_id_wait: Duration::ZERO })
            .unwrap()
    }
}

async fn serve(mut stream: TcpStream, replies: BTreeMap<&'static str, Reply>, seen: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap().to_owned();
    seen.lock().unwrap().push(request);
    let reply = replies.get(path.as_str()).cloned().unwrap_or(Reply::Status(404, "no such page".to_owned()));
    let answer = match reply {
        Reply::Status(status, body) => {
            format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
        }
        Reply::Cut => "HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{\"schema\":".to_owned(),
        Reply::Silence => {
            // Until the client gives up and closes.
            let _ = stream.read_u8().await;
            return;
        }
    };
    let _ = stream.write_all(answer.as_bytes()).await;
}

const PATH: &str = "/base/schemas/ids/7";

async fn ask(reply: Reply) -> Result<SchemaText, RegistryError> {
    let server = Server::start([(PATH, reply)]).await;
    server.registry().schema(SchemaId(7)).await
}

fn status(status: u16, body: &str) -> Reply {
    Reply::Status(status, body.to_owned())
}

#[tokio::test]
async fn a_schema_is_asked_for_by_id_with_the_password() {
    let server = Server::start([(PATH, status(200, r#"{"schema":"\"long\""}"#))]).await;
    let registry = server.registry_with(Some(("reader", "s3cret")), Duration::from_secs(30));
    assert_eq!(registry.schema(SchemaId(7)).await.unwrap(), SchemaText::from("\"long\""));
    let requests = server.requests.lock().unwrap();
    let request = requests[0].to_ascii_lowercase();
    assert!(request.starts_with("get /base/schemas/ids/7 "), "{request}");
    assert!(request.contains("accept: application/vnd.schemaregistry.v1+json"), "{request}");
    // "reader:s3cret" in base64
    assert!(requests[0].contains("Basic cmVhZGVyOnMzY3JldA=="));
    assert!(!format!("{registry:?}").contains("s3cret"));
}

#[tokio::test]
async fn only_the_registrys_own_404_means_that_it_does_not_know_the_id() {
    let own = ask(status(404, r#"{"error_code":40403,"message":"Schema not found"}"#)).await;
    assert!(matches!(own, Err(RegistryError::Unknown { id: SchemaId(7) })));
    for body in ["<html>404</html>", r#"{"error_code":404,"message":"HTTP 404 Not Found"}"#, "", "{}"] {
        assert!(matches!(ask(status(404, body)).await, Err(RegistryError::Refused { .. })), "{body}");
    }
}

#[tokio::test]
async fn what_passes_is_told_from_what_an_operator_must_fix() {
    for code in [500, 502, 503, 504, 429, 408] {
        assert!(matches!(ask(status(code, "")).await, Err(RegistryError::Unavailable { .. })), "{code}");
    }
    for code in [400, 401, 403, 302, 406, 204] {
        assert!(matches!(ask(status(code, "")).await, Err(RegistryError::Refused { .. })), "{code}");
    }
    for body in ["<html>log in</html>", "{}", "[]", r#"{"schema":7}"#] {
        assert!(matches!(ask(status(200, body)).await, Err(RegistryError::Refused { .. })), "{body}");
    }
}

#[tokio::test]
async fn no_answer_a_cut_and_no_listener_are_outages() {
    let server = Server::start([(PATH, Reply::Silence)]).await;
    let error = server.registry_with(None, Duration::from_millis(100)).schema(SchemaId(7)).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unavailable { .. }));
    assert_eq!(error.to_string(), "the schema registry is not available: no answer within 100 ms");
    assert!(matches!(ask(Reply::Cut).await, Err(RegistryError::Unavailable { .. })));

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let settings = RegistrySettings {
        url,
        basic_auth: Some(("reader".to_owned(), SecretString::from("s3cret"))),
        timeout: Duration::from_secs(30),
        unknown_id_wait: Duration::ZERO,
    };
    let error = HttpRegistry::new(&settings).unwrap().schema(SchemaId(7)).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unavailable { .. }));
    assert!(!format!("{error:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_schema_of_another_type_cannot_be_used() {
    for kind in ["PROTOBUF", "JSON", "OTHER"] {
        let body = format!(r#"{{"schema":"{{}}","schemaType":"{kind}"}}"#);
        assert!(matches!(ask(status(200, &body)).await, Err(RegistryError::Unusable { .. })), "{kind}");
    }
    assert!(ask(status(200, r#"{"schema":"\"int\"","schemaType":"AVRO","references":null}"#)).await.is_ok());
}

#[tokio::test]
async fn references_are_followed_once_each() {
    let order = r#"{"schema":"{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"total\",\"type\":\"Money\"}]}",
        "references":[{"name":"Money","subject":"shop/money value","version":3},{"name":"Currency","subject":"currency","version":1}]}"#;
    let money = r#"{"schema":"{\"type\":\"record\",\"name\":\"Money\",\"fields\":[{\"name\":\"in\",\"type\":\"Currency\"}]}",
        "references":[{"name":"Currency","subject":"currency","version":1}]}"#;
    let currency = r#"{"schema":"{\"type\":\"enum\",\"name\":\"Currency\",\"symbols\":[\"EUR\"]}"}"#;
    let server = Server::start([
        (PATH, status(200, order)),
        ("/base/subjects/shop%2Fmoney%20value/versions/3", status(200, money)),
        ("/base/subjects/currency/versions/1", status(200, currency)),
    ])
    .await;
    let schema = server.registry().schema(SchemaId(7)).await.unwrap();
    assert_eq!(schema.references.len(), 2);
    assert!(ParsedSchema::parse(&schema).is_ok());
    assert_eq!(server.requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_reference_that_is_missing_or_endless_is_no_fault_of_the_network() {
    let body = r#"{"schema":"\"int\"","references":[{"name":"A","subject":"a","version":1}]}"#;
    let server = Server::start([(PATH, status(200, body))]).await;
    assert!(matches!(server.registry().schema(SchemaId(7)).await, Err(RegistryError::Refused { .. })));
    let server =
        Server::start([(PATH, status(200, body)), ("/base/subjects/a/versions/1", status(200, body))]).await;
    assert_eq!(server.registry().schema(SchemaId(7)).await.unwrap().references.len(), 1);
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    for url in ["", "registry:8081", "ftp://registry", "/path"] {
        let settings = RegistrySettings {
            url: url.to_owned(),
            basic_auth: None,
            timeout: Duration::from_secs(5),
            unknown_id_wait: Duration::ZERO,
        };
        assert!(matches!(HttpRegistry::new(&settings), Err(RegistryError::Refused { .. })), "{url}");
    }
}
