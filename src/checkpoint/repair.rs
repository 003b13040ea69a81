//! Mends tensors that an exporter stored transposed.

use bytemuck::{AnyBitPattern, NoUninit};
use bytes::Bytes;
use rayon::prelude::*;

use super::{CheckpointError, Elements, Tensor, bytes_of};

/// Side of the squares in which a matrix is turned: both sides of one fit in the first cache.
const TILE: usize = 32;

/// Gives a tensor whose innermost two dimensions were stored the wrong way round the bytes that its shape promises.
///
/// `tensor.shape` is the wanted shape, `(…, rows, columns)`; its bytes hold `(…, columns, rows)`.
///
/// # Errors
/// [`CheckpointError::OutOfMemory`].
pub(super) fn untranspose(tensor: &mut Tensor) -> Result<(), CheckpointError> {
    let &[.., rows, columns] = tensor.shape.as_slice() else { panic!("`{}` is no matrix", tensor.name) };
    let Elements::Bytes(stored) = &tensor.elements else { panic!("`{}` was stored by nobody", tensor.name) };
    let turned = match tensor.dtype.size_bits() {
        16 => turn::<u16>(stored, rows, columns),
        _ => turn::<u32>(stored, rows, columns),
    };
    let out_of_memory = || CheckpointError::OutOfMemory { name: tensor.name.clone(), len_bytes: stored.len() as u64 };
    tensor.elements = Elements::Bytes(turned.ok_or_else(out_of_memory)?);
    tensor.file_offset = None;
    Ok(())
}

/// A run of `(columns, rows)` matrices as a run of `(rows, columns)` ones; `None` without the memory for it.
fn turn<T>(stored: &[u8], rows: usize, columns: usize) -> Option<Bytes>
where
    T: AnyBitPattern + NoUninit + Default + Send + Sync,
{
    let size = size_of::<T>();
    let mut turned = Vec::<T>::new();
    turned.try_reserve_exact(stored.len() / size).ok()?;
    turned.resize(stored.len() / size, T::default());
    let matrix_bytes = rows * columns * size;
    turned.par_chunks_mut(rows * columns).zip(stored.par_chunks(matrix_bytes)).for_each(|(to, from)| {
        to.par_chunks_mut(TILE * columns).enumerate().for_each(|(band, to)| {
            turn_band(to, from, band * TILE, rows, columns);
        });
    });
    Some(bytes_of(turned))
}

/// Fills the rows from `first_row` on, as many as `to` holds, reading the stored columns tile by tile.
fn turn_band<T: AnyBitPattern>(to: &mut [T], from: &[u8], first_row: usize, rows: usize, columns: usize) {
    let size = size_of::<T>();
    for first_column in (0..columns).step_by(TILE) {
        let tile_columns = first_column..columns.min(first_column + TILE);
        for (r, row) in to.chunks_mut(columns).enumerate() {
            for c in tile_columns.clone() {
                let at = (c * rows + first_row + r) * size;
                row[c] = bytemuck::pod_read_unaligned(&from[at..at + size]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    #[test]
    fn every_element_finds_its_place_in_shapes_around_the_tile() {
        for (experts, rows, columns) in [(1, 1, 1), (3, 5, 7), (2, 32, 33), (1, 70, 31), (2, 64, 96)] {
            let value = |e: usize, r: usize, c: usize| ((e * rows + r) * columns + c) as u32;
            let mut stored = vec![0u8]; // one byte in front: the source need not be aligned
            for e in 0..experts {
                for c in 0..columns {
                    for r in 0..rows {
                        stored.extend(value(e, r, c).to_le_bytes());
                    }
                }
            }
            let mut tensor = Tensor {
                name: "w".into(),
                dtype: Dtype::F32,
                shape: vec![experts, rows, columns],
                elements: Elements::Bytes(Bytes::from(stored).slice(1..)),
                file_offset: Some(1),
            };
            untranspose(&mut tensor).unwrap();
            let want: Vec<u8> = (0..experts * rows * columns).flat_map(|i| (i as u32).to_le_bytes()).collect();
            assert_eq!(tensor.bytes().unwrap(), &want, "({experts}, {rows}, {columns})");
        }
    }
}
