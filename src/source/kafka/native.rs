//! What the client library's wrapper lacks: one data queue for all partitions, leader epochs, topic ids.
//!
//! All `unsafe` of the program stands in this file. Each block says why it is sound. The rules of the C library that they
//! rest on: a queue belongs to one client and must be destroyed before it; a message must be destroyed once; functions of
//! a client may be called from any thread.

#![expect(unsafe_code, reason = "the client library's wrapper does not offer these calls")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka_sys as sys;

use crate::position::RecordOffset;
use crate::record::{Header, Record, RecordCoordinates, RecordTimestamp, TopicPartition};

/// The queue to which the queues of all partitions of a consumer are forwarded.
#[derive(Debug)]
pub(super) struct DataQueue {
    queue: *mut sys::rd_kafka_queue_t,
    /// Names that messages share.
    topics: BTreeMap<Vec<u8>, Arc<str>>,
}

// SAFETY: the library's queues may be used from any thread; this handle is used by one at a time.
unsafe impl Send for DataQueue {}

/// The queue of a consumer's events: rebalances, statistics, log lines, errors.
#[derive(Debug)]
pub(super) struct EventQueue(*mut sys::rd_kafka_queue_t);

// SAFETY: as for `DataQueue`.
unsafe impl Send for EventQueue {}

impl EventQueue {
    pub(super) fn of<C: ClientContext>(client: &Client<C>) -> Self {
        // SAFETY: the client's handle is valid for as long as `client` lives, and the source drops the queue first.
        Self(unsafe { sys::rd_kafka_queue_get_consumer(client.native_ptr()) })
    }

    /// How many events wait.
    pub(super) fn length(&self) -> usize {
        if self.0.is_null() {
            return 0;
        }
        // SAFETY: the queue is a reference of our own, given back when this is dropped.
        unsafe { sys::rd_kafka_queue_length(self.0) }
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: not used any more.
            unsafe { sys::rd_kafka_queue_destroy(self.0) };
        }
    }
}

/// What a read of the data queue gives.
#[derive(Debug)]
pub(super) enum Item {
    Record(Record),
    Error { partition: TopicPartition, code: RDKafkaErrorCode, text: String },
}

impl DataQueue {
    pub(super) fn new<C: ClientContext>(client: &Client<C>) -> Self {
        // SAFETY: the client's handle is valid for as long as `client` lives, and the source drops the queue first.
        let queue = unsafe { sys::rd_kafka_queue_new(client.native_ptr()) };
        Self { queue, topics: BTreeMap::new() }
    }

    /// Sends what is fetched from a partition to this queue.
    pub(super) fn forward<C: ClientContext>(&self, client: &Client<C>, partition: &TopicPartition) {
        let Ok(topic) = CString::new(partition.topic.as_bytes()) else { return };
        // SAFETY: client and queue are valid; the partition's queue is a reference of our own, given back at once.
        unsafe {
            let from =
                sys::rd_kafka_queue_get_partition(client.native_ptr(), topic.as_ptr(), partition.partition);
            if !from.is_null() {
                sys::rd_kafka_queue_forward(from, self.queue);
                sys::rd_kafka_queue_destroy(from);
            }
        }
    }

    /// Waits for the first item at most `wait`, then takes what is there, up to `most` items.
    pub(super) fn read(&mut self, wait: Duration, most: usize) -> Vec<Item> {
        let wait = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the queue is valid. The message, if there is one, is ours.
        let first = unsafe { sys::rd_kafka_consume_queue(self.queue, wait) };
        if first.is_null() {
            return Vec::new();
        }
        // The batch call waits until it is full: it only gets what is there already.
        let mut messages = vec![std::ptr::null_mut(); most.saturating_sub(1)];
        // SAFETY: the queue is valid and the buffer has the length that is given.
        let count = unsafe {
            sys::rd_kafka_consume_batch_queue(self.queue, 0, messages.as_mut_ptr(), messages.len())
        };
        messages.truncate(usize::try_from(count).unwrap_or(0));
        let mut items = Vec::with_capacity(messages.len() + 1);
        for message in std::iter::once(first).chain(messages) {
            // SAFETY: the library gave the message to us; it is read, then destroyed once.
            unsafe {
                items.push(self.item(&*message));
                sys::rd_kafka_message_destroy(message);
            }
        }
        items
    }

    /// # Safety
    /// `message` comes from the library and has not been destroyed.
    unsafe fn item(&mut self, message: &sys::rd_kafka_message_t) -> Item {
        // SAFETY: a message of a partition queue has a topic, whose name lives as long as the message.
        let name = unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(message.rkt)) };
        let partition = TopicPartition { topic: self.topic(name.to_bytes()), partition: message.partition };
        match RDKafkaErrorCode::from(message.err) {
            RDKafkaErrorCode::NoError => {
                // SAFETY: as for this function.
                Item::Record(unsafe { record(message, partition) })
            }
            code => {
                // SAFETY: the text lives as long as the message; null is excluded.
                let text = unsafe {
                    let text = sys::rd_kafka_message_errstr(message);
                    if text.is_null() {
                        String::new()
                    } else {
                        CStr::from_ptr(text).to_string_lossy().into_owned()
                    }
                };
                Item::Error { partition, code, text }
            }
        }
    }

    fn topic(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(topic) = self.topics.get(name) {
            return topic.clone();
        }
        let topic: Arc<str> = String::from_utf8_lossy(name).into();
        self.topics.insert(name.to_owned(), topic.clone());
        topic
    }
}

impl Drop for DataQueue {
    fn drop(&mut self) {
        // SAFETY: made by `rd_kafka_queue_new`, destroyed once, and before its client.
        unsafe { sys::rd_kafka_queue_destroy(self.queue) }
    }
}

/// Copies a message: one allocation for key, value and header values, so that a record that is kept does not keep the
/// whole fetch that it came with.
///
/// # Safety
/// `message` comes from the library, is no error, and has not been destroyed.
unsafe fn record(message: &sys::rd_kafka_message_t, partition: TopicPartition) -> Record {
    // SAFETY: the library's payload, key and headers are valid for as long as the message.
    let (key, value, headers) = unsafe {
        (slice(message.key, message.key_len), slice(message.payload, message.len), headers(message))
    };
    let sizes = [key, value].into_iter().flatten().map(<[u8]>::len).sum::<usize>();
    let header_sizes: usize = headers.iter().filter_map(|(_, value)| value.map(<[u8]>::len)).sum();
    let mut all = Vec::with_capacity(sizes + header_sizes);
    let parts: Vec<Option<&[u8]>> =
        [key, value].into_iter().chain(headers.iter().map(|(_, value)| *value)).collect();
    for part in parts.iter().flatten() {
        all.extend_from_slice(part);
    }
    let all = Bytes::from(all);
    let mut at = 0;
    let mut taken = parts.iter().map(|part| {
        part.map(|part| {
            let from = at;
            at += part.len();
            all.slice(from..at)
        })
    });
    let (key, value) = (taken.next().flatten(), taken.next().flatten());
    let headers =
        headers.iter().zip(taken).map(|((name, _), value)| Header { name: name.clone(), value }).collect();
    let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    // SAFETY: as for this function; `kind` is written by the call.
    let (millis, leader_epoch) = unsafe {
        (sys::rd_kafka_message_timestamp(message, &raw mut kind), sys::rd_kafka_message_leader_epoch(message))
    };
    let timestamp = match kind {
        sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_CREATE_TIME if millis >= 0 => {
            RecordTimestamp::Create(millis)
        }
        sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME if millis >= 0 => {
            RecordTimestamp::LogAppend(millis)
        }
        _ => RecordTimestamp::Absent,
    };
    Record {
        coordinates: RecordCoordinates {
            topic_partition: partition,
            offset: RecordOffset::new(message.offset),
        },
        leader_epoch: (leader_epoch >= 0).then_some(leader_epoch),
        timestamp,
        key,
        value,
        headers,
    }
}

/// # Safety
/// `from` is null or points to `len` bytes that live for `'a`.
unsafe fn slice<'a>(from: *const std::ffi::c_void, len: usize) -> Option<&'a [u8]> {
    if from.is_null() {
        return None;
    }
    // SAFETY: as for this function.
    Some(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) })
}

/// # Safety
/// `message` comes from the library and lives for `'a`.
unsafe fn headers(message: &sys::rd_kafka_message_t) -> Vec<(ByteString, Option<&[u8]>)> {
    let mut found = std::ptr::null_mut();
    // SAFETY: the message is valid; the headers stay its own.
    let code = unsafe { sys::rd_kafka_message_headers(message, &raw mut found) };
    if RDKafkaErrorCode::from(code) != RDKafkaErrorCode::NoError || found.is_null() {
        return Vec::new();
    }
    let mut headers = Vec::new();
    loop {
        let (mut name, mut value, mut size) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the headers are valid; an index beyond the last one is answered with an error.
        let code = unsafe {
            sys::rd_kafka_header_get_all(found, headers.len(), &raw mut name, &raw mut value, &raw mut size)
        };
        if RDKafkaErrorCode::from(code) != RDKafkaErrorCode::NoError || name.is_null() {
            return headers;
        }
        // SAFETY: name and value live as long as the message; the name ends with NUL.
        let (name, value) = unsafe { (CStr::from_ptr(name), slice(value, size)) };
        headers.push((ByteString::from(name.to_string_lossy().into_owned()), value));
    }
}

/// The ids of topics, where the cluster gives them; empty where it does not know the question.
///
/// # Errors
/// No answer, or a refusal: an id that is not known for such a reason must not count as none.
pub(super) fn topic_ids<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    timeout: Duration,
) -> Result<BTreeMap<String, String>, RDKafkaErrorCode> {
    let names: Vec<CString> = topics.iter().filter_map(|topic| CString::new(topic.as_bytes()).ok()).collect();
    let mut pointers: Vec<*const std::ffi::c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let mut ids = BTreeMap::new();
    let mut failure = Some(RDKafkaErrorCode::OperationTimedOut);
    // SAFETY: every object that is made here is checked for null where that can be and destroyed once, after its last use;
    // names and pointers live to the end of the block, and the strings of the answer as long as the event.
    unsafe {
        let collection = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let queue = sys::rd_kafka_queue_new(client.native_ptr());
        let options = sys::rd_kafka_AdminOptions_new(
            client.native_ptr(),
            sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        );
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis, std::ptr::null_mut(), 0);
        sys::rd_kafka_DescribeTopics(client.native_ptr(), collection, options, queue);
        let event = sys::rd_kafka_queue_poll(queue, millis);
        if !event.is_null() {
            failure = match RDKafkaErrorCode::from(sys::rd_kafka_event_error(event)) {
                RDKafkaErrorCode::NoError | RDKafkaErrorCode::UnsupportedFeature => None,
                code => Some(code),
            };
            let result = sys::rd_kafka_event_DescribeTopics_result(event);
            if !result.is_null() {
                let mut count = 0;
                let described = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
                for index in 0..count {
                    let topic = *described.add(index);
                    let error = sys::rd_kafka_TopicDescription_error(topic);
                    let id = sys::rd_kafka_TopicDescription_topic_id(topic);
                    let is_error = !error.is_null()
                        && RDKafkaErrorCode::from(sys::rd_kafka_error_code(error))
                            != RDKafkaErrorCode::NoError;
                    if is_error || id.is_null() {
                        continue;
                    }
                    let name = CStr::from_ptr(sys::rd_kafka_TopicDescription_name(topic));
                    let id = CStr::from_ptr(sys::rd_kafka_Uuid_base64str(id));
                    ids.insert(name.to_string_lossy().into_owned(), id.to_string_lossy().into_owned());
                }
            }
            sys::rd_kafka_event_destroy(event);
        }
        sys::rd_kafka_AdminOptions_destroy(options);
        sys::rd_kafka_queue_destroy(queue);
        sys::rd_kafka_TopicCollection_destroy(collection);
    }
    // A cluster without topic ids answers with an id of zeros.
    ids.retain(|_, id| !id.trim_matches(['A', '=']).is_empty());
    failure.map_or(Ok(ids), Err)
}
