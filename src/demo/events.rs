//! The sample shop: events in Avro, the same on every run, and the rows that they must lead to.
//!
//! The rows are computed here from the shop's own history, by a few lines over maps that share nothing with decode, map or
//! fold. That is what makes the demo's comparison worth something.

use std::collections::BTreeMap;

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;

/// The topics, each of three partitions.
pub const TOPICS: [&str; 2] = ["shop.products", "shop.stock"];

/// Schema ids as the sample registry gives them, with the schema's text.
pub const SCHEMAS: [(u32, &str); 4] = [
    (1, include_str!("../../schemas/product_listed.avsc")),
    (2, include_str!("../../schemas/product_price_changed.avsc")),
    (3, include_str!("../../schemas/product_delisted.avsc")),
    (4, include_str!("../../schemas/stock_moved.avsc")),
];

/// A schema id that the sample registry does not know.
const UNKNOWN_SCHEMA: u32 = 99;

/// A record to produce.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The topic.
    pub topic: &'static str,
    /// The key: a product's id, or a warehouse.
    pub key: String,
    /// The value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
}

/// What the tables and the dead letters must be once everything is applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Rows of `products` by id.
    pub products: BTreeMap<String, Product>,
    /// Quantity by sku and warehouse.
    pub stock: BTreeMap<(String, String), i64>,
    /// Dead letters by reason.
    pub dead_letters: BTreeMap<&'static str, usize>,
}

/// A row of `products`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    /// `name`
    pub name: String,
    /// `category`
    pub category: Option<String>,
    /// `price_cents`
    pub price_cents: i64,
    /// `listed_at`, microseconds since 1970-01-01 UTC.
    pub listed_at: i64,
    /// `price_changes`
    pub price_changes: i64,
}

/// The shop's history: about `count` records in the order in which they are produced, and what they lead to.
///
/// # Panics
/// The sample schemas do not parse, which a test rules out.
#[must_use]
pub fn history(count: usize) -> (Vec<Sample>, Expected) {
    let mut shop = Shop::new();
    while shop.samples.len() < count {
        shop.step(count);
    }
    (shop.samples, shop.expected)
}

struct Shop {
    schemas: Vec<(u32, Schema)>,
    random: u64,
    samples: Vec<Sample>,
    expected: Expected,
    /// Faulty records so far.
    faults: usize,
}

impl Shop {
    fn new() -> Self {
        let parse =
            |(id, text): &(u32, &str)| (*id, Schema::parse_str(text).expect("the sample schemas are valid"));
        Self {
            schemas: SCHEMAS.iter().map(parse).collect(),
            random: 0x5eed,
            samples: Vec::new(),
            expected: Expected::default(),
            faults: 0,
        }
    }

    /// A number below `bound`, from a fixed sequence (splitmix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn step(&mut self, count: usize) {
        // The faulty records come at fixed places, so that there is one of each kind at any size.
        let at = self.samples.len();
        match self.faults {
            0 if at >= count / 5 => self.undecodable(),
            1 if at >= count * 2 / 5 => self.unknown_schema(),
            2 if at >= count * 3 / 5 => self.price_that_does_not_fit(),
            _ => {}
        }
        match self.below(10) {
            0..=2 => self.list(),
            3..=4 => self.change_price(),
            5 => self.delist(),
            _ => self.move_stock(),
        }
    }

    fn product_id(&mut self) -> String {
        format!("p{:04}", self.below(1500))
    }

    /// Encodes `fields` with the schema of `id`, behind the Confluent frame.
    fn encode(&self, id: u32, fields: Vec<(&str, Value)>) -> Vec<u8> {
        let schema = self.schemas.iter().find(|(known, _)| *known == id).map(|(_, schema)| schema);
        let schema = schema.expect("a sample schema");
        let record =
            Value::Record(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        let writer = GenericDatumWriter::builder(schema).build().expect("the sample schemas resolve");
        let datum = writer.write_value_to_vec(record).expect("the sample values fit their schemas");
        frame(id, &datum)
    }

    fn send(&mut self, topic: &'static str, key: &str, value: Option<Vec<u8>>) {
        self.samples.push(Sample { topic, key: key.to_owned(), value });
    }

    fn list(&mut self) {
        let id = self.product_id();
        let number = self.below(900);
        let category = (!number.is_multiple_of(3))
            .then(|| ["lamps", "chairs", "tables"][(number % 7 % 3) as usize].to_owned());
        let product = Product {
            name: format!("Product {id} no. {number}"),
            category,
            price_cents: i64::try_from(100 + self.below(100_000)).unwrap_or(100),
            listed_at: 1_700_000_000_000_000 + i64::try_from(self.samples.len()).unwrap_or(0) * 1_000_000,
            price_changes: self.expected.products.get(&id).map_or(0, |known| known.price_changes),
        };
        let value = self.listing(&product);
        // Every tenth listing is delivered twice, as a producer without idempotence would do.
        if self.below(10) == 0 {
            self.send(TOPICS[0], &id, Some(value.clone()));
        }
        self.send(TOPICS[0], &id, Some(value));
        self.expected.products.insert(id, product);
    }

    fn listing(&self, product: &Product) -> Vec<u8> {
        let price = Value::Record(vec![
            ("cents".to_owned(), Value::Long(product.price_cents)),
            ("currency".to_owned(), Value::Enum(0, "EUR".to_owned())),
        ]);
        let category = match &product.category {
            Some(category) => Value::Union(1, Box::new(Value::String(category.clone()))),
            None => Value::Union(0, Box::new(Value::Null)),
        };
        let fields = vec![
            ("name", Value::String(product.name.clone())),
            ("price", price),
            ("category", category),
            ("listed_at", Value::TimestampMicros(product.listed_at)),
            ("tags", Value::Array(vec![Value::String("sample".to_owned())])),
        ];
        self.encode(1, fields)
    }

    /// A product that is on offer, if there is one from a random place on.
    fn listed(&mut self) -> Option<String> {
        let from = self.product_id();
        self.expected.products.range(from..).next().map(|(id, _)| id.clone())
    }

    fn change_price(&mut self) {
        let Some(id) = self.listed() else { return };
        let cents = i64::try_from(100 + self.below(100_000)).unwrap_or(100);
        let fields = vec![
            ("cents", Value::Long(cents)),
            ("changed_at", Value::TimestampMicros(1_700_000_000_000_000)),
        ];
        let value = self.encode(2, fields);
        self.send(TOPICS[0], &id, Some(value));
        if let Some(product) = self.expected.products.get_mut(&id) {
            product.price_cents = cents;
            product.price_changes += 1;
        }
    }

    fn delist(&mut self) {
        let Some(id) = self.listed() else { return };
        // Half of the products go by an event, half by a tombstone.
        let value = (self.below(2) == 0)
            .then(|| self.encode(3, vec![("reason", Value::String("sold out".to_owned()))]));
        self.send(TOPICS[0], &id, value);
        self.expected.products.remove(&id);
    }

    fn move_stock(&mut self) {
        let sku = self.product_id();
        let warehouse = format!("w{}", self.below(9));
        let delta = i32::try_from(self.below(40)).unwrap_or(0) - 10;
        let fields = vec![
            ("sku", Value::String(sku.clone())),
            ("warehouse", Value::String(warehouse.clone())),
            ("delta", Value::Int(delta)),
        ];
        let value = self.encode(4, fields);
        self.send(TOPICS[1], &warehouse, Some(value));
        if delta != 0 {
            *self.expected.stock.entry((sku, warehouse)).or_default() += i64::from(delta);
        }
    }

    fn undecodable(&mut self) {
        self.faults += 1;
        self.send(TOPICS[0], "p0001", Some(b"{\"this\": \"is not Avro\"}".to_vec()));
        *self.expected.dead_letters.entry("bad_framing").or_default() += 1;
    }

    fn unknown_schema(&mut self) {
        self.faults += 1;
        self.send(TOPICS[1], "w1", Some(frame(UNKNOWN_SCHEMA, &[2, 4, 6])));
        *self.expected.dead_letters.entry("schema_not_found").or_default() += 1;
    }

    fn price_that_does_not_fit(&mut self) {
        let product = Product {
            name: "A yacht".to_owned(),
            category: None,
            price_cents: 5_000_000_000,
            listed_at: 1_700_000_000_000_000,
            price_changes: 0,
        };
        self.faults += 1;
        let value = self.listing(&product);
        self.send(TOPICS[0], "p9999", Some(value));
        *self.expected.dead_letters.entry("value_out_of_range").or_default() += 1;
    }
}

fn frame(id: u32, datum: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend_from_slice(&id.to_be_bytes());
    framed.extend_from_slice(datum);
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_the_same_every_time_and_has_one_fault_of_each_kind() {
        let (samples, expected) = history(2000);
        let (again, expected_again) = history(2000);
        assert_eq!(expected, expected_again);
        assert!(samples.iter().zip(&again).all(|(a, b)| a.key == b.key && a.value == b.value));
        assert!(samples.len() >= 2000 && samples.len() <= 2003);
        assert_eq!(expected.dead_letters.values().sum::<usize>(), 3);
        assert!(!expected.products.is_empty() && !expected.stock.is_empty());
    }

    #[test]
    fn some_records_are_tombstones_and_some_are_delivered_twice() {
        let (samples, _) = history(2000);
        assert!(samples.iter().any(|sample| sample.value.is_none()));
        assert!(samples.windows(2).any(|pair| pair[0].key == pair[1].key && pair[0].value == pair[1].value));
    }
}
