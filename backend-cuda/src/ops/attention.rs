//! Rotary embedding, and attention over the paged cache.

use super::{CudaOps, Tensor, same};
use crate::{kv::KvCache, launch::args, step::Step};
use cudarc::driver::sys::CUdeviceptr;
use met_kernels::{AttentionShape, Result, RopeTable};

impl CudaOps {
    pub(super) fn rope_and_write(
        &mut self,
        [q, k, v]: [&Tensor; 3],
        rope: &RopeTable,
        shape: &AttentionShape,
        kv: &mut KvCache,
        layer: usize,
        step: &Step,
    ) -> Result<()> {
        kv.check(layer, shape, &step.host)?;
        same(q.cols, shape.heads * shape.head_dim)?;
        same(k.cols, shape.kv_heads * shape.head_dim)?;
        same(v.cols, k.cols)?;
        rope.check(shape.head_dim)?;
        let tokens = step.host.tokens().len();
        let angles = self.angles(step, rope)?;
        let slots = step.places(kv, shape)?.slots;
        let args = args![
            q.at(tokens)?,
            k.at(tokens)?,
            v.at(tokens)?,
            kv.data.address(),
            angles,
            slots,
            shape.heads as u32,
            shape.kv_heads as u32,
            shape.head_dim as u32,
            rope.inverse_frequencies.len() as u32,
            u32::from(rope.half_split),
            kv.layers as u32,
            layer as u32,
            kv.block_size as u32
        ];
        self.launch(self.kernels.rope_kv_write, [tokens, 1], 256, args)
    }

    pub(super) fn attend(
        &mut self,
        q: &Tensor,
        kv: &KvCache,
        layer: usize,
        shape: &AttentionShape,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        kv.check(layer, shape, &step.host)?;
        same(q.cols, shape.heads * shape.head_dim)?;
        same(out.cols, q.cols)?;
        let tokens = step.host.tokens().len();
        let (q, out) = (q.at(tokens)?, out.at(tokens)?);
        let places = step.places(kv, shape)?;
        let sizes = [
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            kv.layers,
            layer,
            kv.block_size,
            // A window that no position fills is none.
            if shape.window < 1 << 30 { shape.window } else { 0 },
        ];
        // `Shape` of attention.cu.
        let mut words = [0; 9];
        words[..7].copy_from_slice(&sizes.map(|size| size as u32));
        words[7..].copy_from_slice(&[shape.scale, shape.softcap].map(f32::to_bits));
        let [partials, states] = places.partials;
        let args = args![
            q,
            kv.data.address(),
            out,
            places.item_list,
            places.tables,
            partials,
            states,
            words
        ];
        self.launch(kv.attention, [places.items, shape.kv_heads], 128, args)?;
        let args = args![
            partials,
            states,
            places.merge_list,
            out,
            shape.heads as u32,
            shape.head_dim as u32
        ];
        self.launch(kv.merge, [places.merges, shape.heads], kv.padded_dim as u32, args)
    }

    /// The angles of a step by a table, made when they are first asked for.
    fn angles(&mut self, step: &Step, rope: &RopeTable) -> Result<CUdeviceptr> {
        let (angles, frequencies) = step.angles(rope)?;
        let pairs = rope.inverse_frequencies.len();
        if let Some(frequencies) = frequencies.filter(|_| pairs > 0) {
            let args = args![
                step.positions(),
                frequencies,
                angles,
                pairs as u32,
                rope.magnitude
            ];
            let grid = [step.host.tokens().len(), 1];
            self.launch(self.kernels.rope_angles, grid, 128, args)?;
        }
        Ok(angles)
    }
}
