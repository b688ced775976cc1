//! Ends of partitions that are assigned and not read: statistics say nothing of them, and their lag must not freeze.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::client::REQUEST_TIMEOUT;
use super::context::Context;
use crate::position::NextOffset;

/// How often the broker is asked.
const INTERVAL: Duration = Duration::from_secs(2);

/// Asks for the ends of idle partitions, one round at a time.
#[derive(Debug)]
pub(super) struct IdleEnds {
    asked: Instant,
    is_asking: Arc<AtomicBool>,
}

impl IdleEnds {
    pub(super) fn new() -> Self {
        Self { asked: Instant::now(), is_asking: Arc::default() }
    }

    /// Begins a round where one is due. It runs on a thread of its own: every question may take as long as a request.
    pub(super) fn ask(&mut self, consumer: &Arc<BaseConsumer<Context>>) {
        if self.asked.elapsed() < INTERVAL || self.is_asking.load(Ordering::Acquire) {
            return;
        }
        self.asked = Instant::now();
        let idle = consumer.context().state().idle();
        if idle.is_empty() {
            return;
        }
        self.is_asking.store(true, Ordering::Release);
        let (consumer, is_asking) = (consumer.clone(), self.is_asking.clone());
        std::thread::spawn(move || {
            let context = consumer.context();
            for name in idle {
                match consumer.fetch_watermarks(&name.topic, name.partition, REQUEST_TIMEOUT) {
                    Ok((_, end)) => context.idle_end(name, NextOffset::new(end)),
                    Err(error) => {
                        tracing::debug!(partition = %name, %error, "the end of an idle partition is not known");
                        break;
                    }
                }
            }
            is_asking.store(false, Ordering::Release);
        });
    }
}
