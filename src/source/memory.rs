//! A source made from lists, for tests of the pipeline without a broker.
