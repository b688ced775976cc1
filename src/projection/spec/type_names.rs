//! Names of types that are likely not meant as they are written.

/// Names of portable types.
pub(super) const PORTABLE: &[&str] = &[
    "text",
    "varchar",
    "boolean",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "real",
    "double",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "uuid",
    "json",
    "bytes",
];

/// What portable types are called elsewhere.
const ELSEWHERE: &[(&str, &str)] = &[
    ("string", "text"),
    ("str", "text"),
    ("nvarchar", "varchar"),
    ("clob", "text"),
    ("tinyint", "smallint"),
    ("int16", "smallint"),
    ("short", "smallint"),
    ("int32", "integer"),
    ("int64", "bigint"),
    ("long", "bigint"),
    ("uint64", "numeric"),
    ("number", "numeric"),
    ("float32", "real"),
    ("float64", "double"),
    ("datetime", "timestamptz"),
    ("instant", "timestamptz"),
    ("blob", "bytes"),
    ("binary", "bytes"),
    ("varbinary", "bytes"),
    ("guid", "uuid"),
];

/// Types that PostgreSQL has, or that come with extensions that are common, beside the portable ones.
const OF_POSTGRESQL: &[&str] = &[
    "bit",
    "varbit",
    "bit varying",
    "char",
    "character",
    "bpchar",
    "nchar",
    "name",
    "citext",
    "interval",
    "timetz",
    "time with time zone",
    "money",
    "xml",
    "jsonpath",
    "inet",
    "cidr",
    "macaddr",
    "macaddr8",
    "point",
    "line",
    "lseg",
    "box",
    "path",
    "polygon",
    "circle",
    "tsvector",
    "tsquery",
    "oid",
    "xid",
    "xid8",
    "cid",
    "tid",
    "pg_lsn",
    "pg_snapshot",
    "txid_snapshot",
    "regclass",
    "regtype",
    "regproc",
    "regprocedure",
    "regoper",
    "regoperator",
    "regnamespace",
    "regrole",
    "regconfig",
    "regdictionary",
    "regcollation",
    "int2vector",
    "oidvector",
    "int4range",
    "int8range",
    "numrange",
    "tsrange",
    "tstzrange",
    "daterange",
    "int4multirange",
    "int8multirange",
    "nummultirange",
    "tsmultirange",
    "tstzmultirange",
    "datemultirange",
    "hstore",
    "ltree",
    "lquery",
    "ltxtquery",
    "cube",
    "seg",
    "isbn",
    "isbn13",
    "geometry",
    "geography",
    "box2d",
    "box3d",
    "raster",
    "vector",
    "halfvec",
    "sparsevec",
    "semver",
];

/// Other names by which PostgreSQL knows portable types.
const ALIASES: &[&str] = &[
    "bool",
    "int",
    "int2",
    "int4",
    "int8",
    "float",
    "float4",
    "float8",
    "decimal",
    "bytea",
    "jsonb",
    "character varying",
    "double precision",
    "timestamp with time zone",
    "timestamp without time zone",
    "time without time zone",
];

/// The portable type that is likely meant by `name`, in lower case and without what stands in brackets; `None` where it is
/// the name of a type, or near to none.
pub(super) fn meant(name: &str) -> Option<&'static str> {
    let mut element = name;
    while let Some(rest) = element.strip_suffix("[]") {
        element = rest.trim_end();
    }
    let known = [PORTABLE, ALIASES, OF_POSTGRESQL];
    // In quotes, or in a schema, it is somebody's own.
    if element.contains(['"', '.']) || known.iter().any(|names| names.contains(&element)) {
        return None;
    }
    let portable = PORTABLE.iter().map(|name| (*name, *name));
    portable
        .chain(ELSEWHERE.iter().copied())
        .map(|(written, meant)| (strsim::damerau_levenshtein(element, written), written, meant))
        .filter(|(distance, written, _)| *distance <= 1 + written.len() / 7)
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., meant)| meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_foreign_names_have_a_meaning() {
        for (name, expected) in [
            ("strng", "text"),
            ("string", "text"),
            ("txt", "text"),
            ("intger", "integer"),
            ("boolaen", "boolean"),
            ("timestampz", "timestamp"),
            ("long", "bigint"),
            ("varchar2", "varchar"),
            ("strng[]", "text"),
        ] {
            assert_eq!(meant(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn names_of_types_and_of_nothing_near_stay_as_they_are() {
        let own = ["mood", "order_state", "\"dat\"", "shop.dat", "text[]", "int4[][]"];
        for name in own.iter().chain(PORTABLE).chain(ALIASES).chain(OF_POSTGRESQL) {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
