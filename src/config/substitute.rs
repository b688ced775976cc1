//! `${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `$$` inside scalars.
//!
//! Substitution works on the tree, after the YAML has been read: what a variable or a file holds can never change the
//! shape of the configuration. Secrets that live in files are read when the configuration is loaded, which is at start.

use std::path::{Path, PathBuf};

use super::yaml::{Mistake, Place};

/// Where the values of variables and secret files come from.
pub trait Surroundings {
    /// The value of an environment variable; `None` where it is not set.
    ///
    /// # Errors
    /// It is set to something that is not UTF-8.
    fn variable(&self, name: &str) -> Result<Option<String>, String>;

    /// The text of a file.
    ///
    /// # Errors
    /// The file cannot be read: why, without its content.
    fn file(&self, path: &Path) -> Result<String, String>;
}

/// The environment and the files of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err("it is not valid UTF-8".into()),
        }
    }

    fn file(&self, path: &Path) -> Result<String, String> {
        read_bounded(path, MAX_FILE)
    }
}

/// Reads a regular file of at most `most` bytes: nothing that never ends, and nothing that waits for a writer.
pub(super) fn read_bounded(path: &Path, most: u64) -> Result<String, String> {
    use std::io::Read;
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(most + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > most {
        return Err(format!("it is larger than {most} bytes"));
    }
    Ok(text)
}

/// The largest secret file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A scalar once substituted.
#[derive(Clone, PartialEq, Eq)]
pub struct Substituted {
    /// The text with everything put in.
    pub text: String,
    /// What may be quoted in messages: the text as it stands in the file.
    pub shown: String,
}

/// Substitutes `text`, which stands at `place`. Paths are relative to `folder`; one newline at a file's end is dropped.
/// An empty variable counts as one that is not set where a default is given, as in a shell.
///
/// # Errors
/// A variable without default that is not set, a file that cannot be read, or a `$` that begins nothing.
pub fn substitute(
    text: &str,
    place: &Place,
    folder: &Path,
    surroundings: &dyn Surroundings,
) -> Result<Substituted, Mistake> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let Some(inner) = rest.strip_prefix('{') else {
            return Err(
                Mistake::new(place, "a `$` that begins no `${…}`").fix("write `$$` for a dollar sign")
            );
        };
        let Some((inner, after)) = inner.split_once('}') else {
            return Err(
                Mistake::new(place, "a `${` without its `}`").fix("write `$${` for these two characters")
            );
        };
        out.push_str(&resolve(inner, place, folder, surroundings)?);
        rest = after;
    }
    out.push_str(rest);
    Ok(Substituted { text: out, shown: text.to_owned() })
}

fn resolve(
    inner: &str,
    place: &Place,
    folder: &Path,
    surroundings: &dyn Surroundings,
) -> Result<String, Mistake> {
    if let Some(variable) = inner.strip_prefix("env:") {
        let (name, default) = match variable.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (variable, None),
        };
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Mistake::new(place, "a variable without a name").fix("write `${env:NAME}`"));
        }
        let value = surroundings
            .variable(name)
            .map_err(|why| Mistake::new(place, format!("the variable {name} cannot be used: {why}")))?;
        return match (value, default) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(default)) => Ok(default.to_owned()),
            (None, None) => Err(Mistake::new(place, format!("the variable {name} is not set"))
                .fix(format!("set it, or give a default: `${{env:{name}:-default}}`"))),
        };
    }
    if let Some(path) = inner.strip_prefix("file:") {
        let path: PathBuf = folder.join(path);
        let mut text = surroundings.file(&path).map_err(|why| {
            Mistake::new(place, format!("the file {} cannot be read: {why}", path.display()))
                .fix("paths are relative to the configuration's own folder")
        })?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        return Ok(text);
    }
    // Not quoted: it may be a part of a password that was meant literally.
    Err(Mistake::new(place, "a `${…}` that begins with neither `env:` nor `file:`")
        .fix("write `${env:NAME}`, `${env:NAME:-default}` or `${file:PATH}`; `$$` is a dollar sign"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;

    /// Variables by name and files by path.
    #[derive(Default)]
    pub(in crate::config) struct Given(pub(in crate::config) BTreeMap<&'static str, &'static str>);

    impl Surroundings for Given {
        fn variable(&self, name: &str) -> Result<Option<String>, String> {
            Ok(self.0.get(name).map(|&value| value.to_owned()))
        }

        fn file(&self, path: &Path) -> Result<String, String> {
            let text = path.to_str().and_then(|path| self.0.get(path));
            text.map(|&text| text.to_owned()).ok_or_else(|| "no such file".into())
        }
    }

    fn substituted(text: &str) -> Result<String, Mistake> {
        let given = Given(BTreeMap::from([
            ("USER", "ann"),
            ("EMPTY", ""),
            ("TRICKY", "${env:USER} $"),
            ("/etc/p/secret", "pa$$\nword\n"),
            ("/run/other", "two\n\n"),
        ]));
        let place = Place { file: Arc::from(Path::new("p.yaml")), line: 3, column: 7 };
        substitute(text, &place, Path::new("/etc/p"), &given).map(|substituted| substituted.text)
    }

    #[test]
    fn variables_files_defaults_and_dollars_are_put_in() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${env:USER}:${file:secret}@h", "ann:pa$$\nword@h"),
            ("${file:/run/other}", "two\n"),
            ("${env:NONE:-x:-y}", "x:-y"),
            ("${env:NONE:-}", ""),
            ("${env:EMPTY:-d}${env:EMPTY}", "d"),
            ("$${env:USER} costs 5$$", "${env:USER} costs 5$"),
        ] {
            assert_eq!(substituted(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_was_put_in_is_not_substituted_again() {
        assert_eq!(substituted("${env:TRICKY}").as_deref(), Ok("${env:USER} $"));
    }

    #[test]
    fn mistakes_have_their_place_and_quote_no_value() {
        for (text, message) in [
            ("${env:NONE}", "the variable NONE is not set"),
            ("${env:}", "a variable without a name"),
            ("${file:none}", "the file /etc/p/none cannot be read: no such file"),
            ("${USER}", "a `${…}` that begins with neither `env:` nor `file:`"),
            ("a $ b", "a `$` that begins no `${…}`"),
            ("${env:USER", "a `${` without its `}`"),
        ] {
            let mistake = substituted(text).expect_err(text);
            assert_eq!((mistake.message.as_str(), mistake.place.line), (message, 3), "{text}");
        }
    }
}
