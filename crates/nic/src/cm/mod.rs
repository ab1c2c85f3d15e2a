//! Placeholder of the CM driver until its author's files land.
use std::sync::Arc;
use transport::Instant;
use wire::{Gid, Qpn};
use crate::engine::Engine;
use crate::gid::GidTable;

pub(crate) enum MadOutcome {
    Handled,
    NotOurs { service_id: u64, dst_gid: Gid },
}
pub(crate) struct CmDriver;
impl CmDriver {
    pub(crate) fn new(_slot: u8, _gids: Arc<GidTable>) -> Self { Self }
    pub(crate) fn poll(&self, _now: Instant, _engine: &Engine) -> usize { 0 }
    pub(crate) fn handle_mad(&self, _now: Instant, _mad: &[u8; 256], _src: Gid, _dst: Gid) -> MadOutcome { MadOutcome::Handled }
    pub(crate) fn reject_no_listener(&self, _mad: &[u8; 256], _src: Gid, _dst: Gid) {}
    pub(crate) fn qp_established(&self, _qpn: Qpn) {}
    pub(crate) fn poll_timeout(&self) -> Option<Instant> { None }
}
