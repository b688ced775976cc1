//! Tables, columns and views as a projection declares them.

use std::fmt;

use bigdecimal::BigDecimal;
use bytestring::ByteString;

/// The index of a table in [`Declaration::tables`](super::Declaration::tables): the declared order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub usize);

/// The index of a column in [`Table::columns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColumnId(pub usize);

/// A table that a projection writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The name without version; the physical table of version 2 is `name__v2`.
    pub name: String,
    /// Who may write a row.
    pub ownership: Ownership,
    /// The primary key's columns, in order; never empty.
    pub primary_key: Vec<ColumnId>,
    /// The columns in declared order.
    pub columns: Vec<Column>,
    /// Indexes beside the primary key.
    pub indexes: Vec<Index>,
}

impl Table {
    /// The physical name of this table in `version`.
    #[must_use]
    pub fn physical_name(&self, version: u32) -> String {
        format!("{}__v{version}", self.name)
    }

    /// The column with this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<ColumnId> {
        self.columns.iter().position(|column| column.name == name).map(ColumnId)
    }

    /// Whether rows carry the aggregate that owns them, in the column `projector_aggregate`.
    #[must_use]
    pub const fn stores_aggregate(&self) -> bool {
        matches!(self.ownership, Ownership::OwnedStored)
    }
}

/// Who may write a row of a table (design: section 6, "Storage").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// All events of a row come from one partition, and every operation's key is exactly the aggregate expression.
    OwnedByKey,
    /// All events of a row come from one partition; the row's aggregate is stored and compared with each write.
    OwnedStored,
    /// Rows are written from several partitions or topics: only operations that commute.
    Shared,
}

/// A column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The name, exactly as in the database.
    pub name: String,
    /// The type.
    pub kind: ColumnType,
    /// Whether NULL is allowed.
    pub nullability: Nullability,
    /// A literal default: what an insert stores where nothing is set, and what `add` counts from.
    pub default: Option<Datum>,
    /// An expression of a generated column, in SQL; such a column is never written.
    pub generated: Option<String>,
}

/// Whether a column may be NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nullability {
    /// NULL is allowed.
    Nullable,
    /// NULL is a dead letter.
    NotNull,
}

/// The type of a column. The portable names map to each store; anything else is PostgreSQL's own and written by text cast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnType {
    /// `text`, or `varchar(n)` with its length in characters.
    Text {
        /// The longest text, in characters.
        max_chars: Option<u32>,
    },
    /// `boolean`
    Boolean,
    /// `smallint`
    SmallInt,
    /// `integer`
    Integer,
    /// `bigint`
    BigInt,
    /// `numeric` or `numeric(precision, scale)`
    Numeric {
        /// Digits in all and digits after the point.
        precision_scale: Option<(u32, i32)>,
    },
    /// `real`
    Real,
    /// `double`
    Double,
    /// `date`
    Date,
    /// `time`
    Time,
    /// `timestamp`
    Timestamp,
    /// `timestamptz`
    TimestampTz,
    /// `uuid`
    Uuid,
    /// `json`
    Json,
    /// `bytes`
    Bytes,
    /// A type of PostgreSQL's catalogue (`tsvector`, `inet`, `text[]`, an enum), by its SQL text.
    Catalogue(String),
}

impl ColumnType {
    /// Whether equality and order of this type are the same in the fold and in every store, as a key needs.
    #[must_use]
    pub const fn is_key(&self) -> bool {
        match self {
            Self::Text { .. }
            | Self::Boolean
            | Self::SmallInt
            | Self::Integer
            | Self::BigInt
            | Self::Numeric { .. }
            | Self::Date
            | Self::Time
            | Self::Timestamp
            | Self::TimestampTz
            | Self::Uuid
            | Self::Bytes => true,
            Self::Real | Self::Double | Self::Json | Self::Catalogue(_) => false,
        }
    }
}

impl ColumnType {
    /// Whether `max` and `min` compare values of this type: a key's order, but for booleans.
    #[must_use]
    pub const fn is_ordered(&self) -> bool {
        self.is_key() && !matches!(self, Self::Boolean)
    }
}

/// Printed as a projection file writes it.
impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { max_chars: None } => f.write_str("text"),
            Self::Text { max_chars: Some(max) } => write!(f, "varchar({max})"),
            Self::Boolean => f.write_str("boolean"),
            Self::SmallInt => f.write_str("smallint"),
            Self::Integer => f.write_str("integer"),
            Self::BigInt => f.write_str("bigint"),
            Self::Numeric { precision_scale: None } => f.write_str("numeric"),
            Self::Numeric { precision_scale: Some((precision, scale)) } => {
                write!(f, "numeric({precision},{scale})")
            }
            Self::Real => f.write_str("real"),
            Self::Double => f.write_str("double"),
            Self::Date => f.write_str("date"),
            Self::Time => f.write_str("time"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::TimestampTz => f.write_str("timestamptz"),
            Self::Uuid => f.write_str("uuid"),
            Self::Json => f.write_str("json"),
            Self::Bytes => f.write_str("bytes"),
            Self::Catalogue(sql) => f.write_str(sql),
        }
    }
}

/// A value that has been checked against its column and fits it exactly.
///
/// Equality, order and hash are those that every store uses for key types: numeric values are kept normalised (no
/// trailing zeros), text compares by bytes. NULL sorts first. The two floating-point types compare by total order and
/// never occur in keys.
#[derive(Debug, Clone)]
pub enum Datum {
    /// NULL.
    Null,
    /// `boolean`
    Bool(bool),
    /// `smallint`, `integer` and `bigint`; within the range of its column.
    Int(i64),
    /// `numeric`, normalised.
    Numeric(BigDecimal),
    /// `real` and `double`.
    Double(f64),
    /// `text` and `varchar`, without NUL.
    Text(ByteString),
    /// `bytes`
    Bytes(bytes::Bytes),
    /// `uuid`
    Uuid([u8; 16]),
    /// `date`: days since 1970-01-01.
    Date(i32),
    /// `time`: microseconds since midnight.
    Time(i64),
    /// `timestamp`: microseconds since 1970-01-01, no zone.
    Timestamp(i64),
    /// `timestamptz`: microseconds since 1970-01-01 UTC.
    TimestampTz(i64),
    /// `json`: its text.
    Json(ByteString),
    /// A catalogue type: its text form, cast by the database.
    Catalogue(ByteString),
}

impl Datum {
    /// Whether this is NULL.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Bytes that this value occupies, for the bounds of a batch.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Text(text) | Self::Json(text) | Self::Catalogue(text) => text.len(),
                Self::Bytes(bytes) => bytes.len(),
                Self::Numeric(number) => usize::try_from(number.digits()).unwrap_or(0) / 2,
                _ => 0,
            }
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Bool(_) => 1,
            Self::Int(_) => 2,
            Self::Numeric(_) => 3,
            Self::Double(_) => 4,
            Self::Text(_) => 5,
            Self::Bytes(_) => 6,
            Self::Uuid(_) => 7,
            Self::Date(_) => 8,
            Self::Time(_) => 9,
            Self::Timestamp(_) => 10,
            Self::TimestampTz(_) => 11,
            Self::Json(_) => 12,
            Self::Catalogue(_) => 13,
        }
    }
}

impl Ord for Datum {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b))
            | (Self::Time(a), Self::Time(b))
            | (Self::Timestamp(a), Self::Timestamp(b))
            | (Self::TimestampTz(a), Self::TimestampTz(b)) => a.cmp(b),
            (Self::Numeric(a), Self::Numeric(b)) => a.cmp(b),
            (Self::Double(a), Self::Double(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b))
            | (Self::Json(a), Self::Json(b))
            | (Self::Catalogue(a), Self::Catalogue(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Self::Bytes(a), Self::Bytes(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Datum {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Datum {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Datum {}

impl std::hash::Hash for Datum {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.rank().hash(state);
        match self {
            Self::Null => {}
            Self::Bool(flag) => flag.hash(state),
            Self::Int(number) | Self::Time(number) | Self::Timestamp(number) | Self::TimestampTz(number) => {
                number.hash(state);
            }
            Self::Numeric(number) => number.hash(state),
            Self::Double(number) => number.to_bits().hash(state),
            Self::Text(text) | Self::Json(text) | Self::Catalogue(text) => text.as_bytes().hash(state),
            Self::Bytes(bytes) => bytes.hash(state),
            Self::Uuid(uuid) => uuid.hash(state),
            Self::Date(days) => days.hash(state),
        }
    }
}

/// An index beside the primary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Column names or, where `expression` says so, one SQL expression.
    pub columns: Vec<String>,
    /// An expression instead of columns, in SQL.
    pub expression: Option<String>,
    /// Whether the index refuses equal keys.
    pub unique: bool,
    /// The access method (`gin`, `gist`, …); the store's default where absent.
    pub method: Option<String>,
    /// A condition in SQL for a partial index.
    pub condition: Option<String>,
}

/// A view that readers query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The view's name.
    pub name: String,
    /// What it shows.
    pub body: ViewBody,
}

/// What a view shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewBody {
    /// The rows of one table, without `projector_…` columns.
    Table(TableId),
    /// SQL in which `{table}` stands for such a row source.
    Sql(String),
}
