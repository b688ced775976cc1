//! The headers of a record as one blob, so that a store keeps them exactly: order, repetition, null values, any bytes.
