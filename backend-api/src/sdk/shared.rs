//! A model that its backend keeps a handle on.

use super::{BackendModel, Output};
use crate::abi::*;
use std::{cell::RefCell, rc::Rc};

/// The model object of a backend that has to reach its models when it sweeps: it keeps a
/// [`Weak`](std::rc::Weak) and can release the pools of a model whose object was never dropped.
impl<M: BackendModel> BackendModel for Rc<RefCell<M>> {
    fn info(&self) -> Result<ModelInfo, Error> {
        self.borrow().info()
    }
    fn resources(&self) -> Result<Vec<ResourceReport>, Error> {
        self.borrow().resources()
    }
    fn submit(&mut self, batch: &Batch<'_>) -> Result<Ticket, Error> {
        self.borrow_mut().submit(batch)
    }
    fn collect(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<(), Error> {
        self.borrow_mut().collect(ticket, out)
    }
    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error> {
        self.borrow_mut().copy_blocks_out(blocks, data)
    }
    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error> {
        self.borrow_mut().copy_blocks_in(blocks, data)
    }
    fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), Error> {
        self.borrow_mut().save_state(slot, data)
    }
    fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error> {
        self.borrow_mut().restore_state(slot, position, data)
    }
    fn free_state(&mut self, slot: u32) -> Result<(), Error> {
        self.borrow_mut().free_state(slot)
    }
    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), Error> {
        self.borrow_mut().take_snapshot(slot, snapshot)
    }
    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), Error> {
        self.borrow_mut().use_snapshot(snapshot, slot)
    }
    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        self.borrow_mut().release_pools()
    }
}
