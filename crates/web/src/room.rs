//! How much of the HTTP door is used: what the daemon shows of it, and where the door takes it from.

use std::sync::Arc;

use super::guests::Guests;
use crate::settings::HttpSettings;
use pylair_os::{budget::Pool, open_files};

#[derive(Debug)]
pub struct Room {
    pub guests: Arc<Guests>,
    pub requests: Arc<Pool>,
    pub streams: Arc<Pool>,
    /// Bytes of bodies that are being read, and of answers that wait to be read.
    pub buffers: Arc<Pool>,
    connections: Arc<Pool>,
}

impl Room {
    pub fn new(settings: &HttpSettings, own: &Arc<str>) -> Self {
        let pool = |what, bound: usize| Pool::new(what, bound as u64, own);
        // As many as there are descriptors for.
        let places = open_files::connections(settings.connections.saturating_add(settings.strangers));
        let strangers = settings.strangers.min(places.div_ceil(4));
        let connections = pool("HTTP connections", settings.connections.min(places - strangers).max(1));
        Self {
            guests: Guests::new(strangers, connections.clone()),
            requests: pool("HTTP requests", settings.requests),
            streams: pool("HTTP streams", settings.streams),
            buffers: pool("HTTP bytes under way", settings.buffer_bytes),
            connections,
        }
    }

    /// What of it the daemon shows.
    pub fn pools(&self) -> [Arc<Pool>; 4] {
        [&self.connections, &self.requests, &self.streams, &self.buffers].map(Arc::clone)
    }
}
