//! The KV blocks of a generation: who holds which is in the block tables, what is free is here.

/// A free list over blocks `0..total`, each of `block_size` tokens.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<u32>,
    total: u32,
    block_size: u32,
}

impl BlockPool {
    pub fn new(total: u32, block_size: u32) -> Self {
        Self {
            free: (0..total).rev().collect(),
            total,
            block_size,
        }
    }

    /// Blocks in all.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Which blocks nobody holds.
    #[cfg(test)]
    pub fn free_blocks(&self) -> &[u32] {
        &self.free
    }

    /// Blocks that `table` lacks to hold `tokens`.
    pub fn missing(&self, table: &[u32], tokens: u32) -> u32 {
        tokens
            .div_ceil(self.block_size)
            .saturating_sub(table.len() as u32)
    }

    /// Whether `count` blocks are free.
    pub fn can_allocate(&self, count: u32) -> bool {
        count <= self.free()
    }

    /// Moves `count` free blocks to the end of `table`; [`can_allocate`](Self::can_allocate) must hold.
    pub fn allocate(&mut self, count: u32, table: &mut Vec<u32>) {
        assert!(
            self.can_allocate(count),
            "{count} blocks asked for, {} are free",
            self.free()
        );
        let rest = self.free.len() - count as usize;
        table.extend(self.free.drain(rest..).rev());
    }

    /// Takes back every block of `table`.
    pub fn release(&mut self, table: &mut Vec<u32>) {
        self.free.extend(table.drain(..).rev());
        debug_assert!(self.free() <= self.total, "a block came back twice");
    }
}
