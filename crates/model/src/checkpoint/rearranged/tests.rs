use super::*;

fn made(tensor: &Rearranged) -> Vec<u8> {
    let mut to = vec![0xee; tensor.len_bytes()];
    tensor.write_to(&mut to);
    to
}

fn f32s(values: impl Iterator<Item = usize>) -> Bytes {
    Bytes::from_iter(values.flat_map(|value| (value as f32).to_le_bytes()))
}

const KEEP: ElementConversion = ElementConversion::Convert { from: Number::F32, to: Dtype::F32 };

fn piece(bytes: Bytes) -> Piece {
    Piece { bytes, step: KEEP, pairs: None, offset: None, scales: None }
}

#[test]
fn every_element_finds_its_place_in_shapes_around_the_tile() {
    for (experts, rows, columns) in [(1, 1, 1), (3, 5, 7), (2, 128, 33), (1, 130, 31), (2, 64, 96)] {
        let value = |e: usize, r: usize, c: usize| ((e * rows + r) * columns + c) as f32;
        let mut stored = vec![0u8]; // one byte in front: the source need not be aligned
        for e in 0..experts {
            for c in 0..columns {
                for r in 0..rows {
                    stored.extend(value(e, r, c).to_le_bytes());
                }
            }
        }
        let stored = Bytes::from(stored).slice(1..);
        let order = ElementOrder::Transposed { n_rows: rows };
        let turned = Rearranged::new(vec![piece(stored)], order, columns);
        let n = experts * rows * columns;
        assert_eq!(made(&turned), f32s(0..n), "({experts}, {rows}, {columns})");
        let rounded: Vec<u8> = (0..n).flat_map(|i| bf16::from_f32(i as f32).to_le_bytes()).collect();
        assert_eq!(made(&turned.with_dtype(Dtype::Bf16)), rounded, "({experts}, {rows}, {columns})");
    }
}

#[test]
fn rows_are_put_one_after_the_other_or_by_turns() {
    for (rows, row_len) in [(2, 3), (20_000, 1), (3, 20_000)] {
        let n = rows * row_len;
        let pieces = vec![piece(f32s(0..n)), piece(f32s(n..2 * n))];
        let joined = Rearranged::new(pieces.clone(), ElementOrder::Concatenated, row_len);
        assert_eq!(made(&joined), f32s(0..2 * n));
        let by_turns = (0..2 * rows).flat_map(|r| (0..row_len).map(move |c| (r % 2 * rows + r / 2) * row_len + c));
        assert_eq!(made(&Rearranged::new(pieces, ElementOrder::Interleaved { at_once: 2 }, row_len)), f32s(by_turns));
    }
    let uneven = [0..6, 6..8, 8..10].map(|values| piece(f32s(values))).to_vec();
    let uneven = Rearranged::new(uneven, ElementOrder::Concatenated, 2);
    assert_eq!(made(&uneven), f32s(0..10));
}

#[test]
fn rows_of_heads_that_rotate_in_part_fill_the_front_of_both_halves() {
    // Two heads of eight rows, the first four of which rotate: pairs (0, 1), (2, 3) become 0, 2 and 1, 3, each before a
    // half of the others. Rows behind the heads stay.
    let pairs = Some(PairedRows { rows: 8, rotated: 4, end: 16 });
    let made_of = Rearranged::new(
        vec![Piece { pairs, ..piece(f32s((0..18).flat_map(|row| [row, row]))) }],
        ElementOrder::Concatenated,
        2,
    );
    let head = [0, 2, 4, 5, 1, 3, 6, 7];
    let rows = head.into_iter().chain(head.map(|row| row + 8)).chain([16, 17]);
    assert_eq!(made(&made_of), f32s(rows.flat_map(|row| [row, row])));
}

#[test]
fn what_is_added_is_in_the_numbers_and_the_files_type_need_not_hold_it() {
    let stored: Bytes = [0.5_f32, -0.25].iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let step = ElementConversion::Convert { from: Number::Bf16, to: Dtype::F32 };
    let one = Piece { bytes: stored, step, pairs: None, offset: Some(1.0), scales: None };
    let made_of = Rearranged::new(vec![one], ElementOrder::Concatenated, 1);
    assert_eq!(made(&made_of), [1.5_f32, 0.75].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    assert_eq!((made_of.stored_dtype(StoredWeights::All), made_of.as_is()), (None, None));
}

#[test]
fn rows_of_heads_in_pairs_are_put_in_halves() {
    // Two heads of six rows: pairs (0, 1), (2, 3), (4, 5) become 0, 2, 4 and 1, 3, 5. Another piece stays.
    let heads = Piece {
        pairs: Some(PairedRows { rows: 6, rotated: 6, end: 12 }),
        ..piece(f32s((0..12).flat_map(|row| [row, row])))
    };
    let other = piece(f32s((20..22).flat_map(|row| [row, row])));
    let made_of = Rearranged::new(vec![heads, other], ElementOrder::Concatenated, 2);
    let rows = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 20, 21];
    assert_eq!(made(&made_of), f32s(rows.into_iter().flat_map(|row| [row, row])));
}

#[test]
fn pieces_of_different_types_become_one() {
    let halves = Bytes::from_iter([1.0, 2.0].iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
    let half = Piece { step: ElementConversion::Convert { from: Number::F16, to: Dtype::F32 }, ..piece(halves) };
    let pieces = vec![piece(f32s(7..9)), half];
    let joined = Rearranged::new(pieces.clone(), ElementOrder::Concatenated, 1);
    assert_eq!(made(&joined), f32s([7, 8, 1, 2].into_iter()));
    assert_eq!(
        made(&Rearranged::new(pieces, ElementOrder::Interleaved { at_once: 2 }, 1)),
        f32s([7, 1, 8, 2].into_iter())
    );
    assert_eq!(joined.stored().collect::<Vec<_>>(), [Number::F32, Number::F16]);
    let rounded: Vec<u8> = [7.0, 8.0, 1.0, 2.0].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    assert_eq!(made(&joined.with_dtype(Dtype::Bf16)), rounded);
}

#[test]
fn numbers_in_blocks_of_one_format_can_stay_so() {
    let block = |first: u8| Bytes::from_iter((0..34).map(|i| first + i));
    let step = ElementConversion::Convert { from: Number::Blocks(Dtype::Q8_0), to: Dtype::F32 };
    let pieces = vec![Piece { step, ..piece(block(1)) }, Piece { step, ..piece(block(101)) }];
    let joined = Rearranged::new(pieces.clone(), ElementOrder::Concatenated, 32);
    assert_eq!(joined.stored_dtype(StoredWeights::All), Some(Dtype::Q8_0));
    let [codes, scales] = joined.in_blocks(Dtype::Q8_0.format().expect("in blocks")).try_into().expect("two");
    assert!(made(&codes).into_iter().eq((3..35).chain(103..135)));
    assert_eq!(made(&scales), [1, 2, 101, 102]);

    let mixed = vec![pieces[0].clone(), piece(f32s(0..32))];
    assert_eq!(Rearranged::new(mixed, ElementOrder::Concatenated, 32).stored_dtype(StoredWeights::All), None);
    let turned = Rearranged::new(vec![piece(f32s(0..6))], ElementOrder::Transposed { n_rows: 2 }, 3);
    assert_eq!(turned.stored_dtype(StoredWeights::All), None);
    let widened = ElementConversion::Convert { from: Number::Bf16, to: Dtype::F32 };
    let widened = Rearranged::new(vec![Piece { step: widened, ..piece(block(1)) }], ElementOrder::Concatenated, 17);
    assert_eq!(widened.stored_dtype(StoredWeights::All), Some(Dtype::Bf16));
    assert_eq!(widened.with_dtype(Dtype::Bf16).as_is(), Some(&block(1)));
    assert_eq!((widened.as_is(), joined.as_is()), (None, None));
}

#[test]
fn bytes_of_e4m3_stay_so_in_rows_of_whole_blocks_beside_their_scales() {
    use super::super::inventory::{Inventory, StoredTensor};
    use super::super::stored::{Codec, StoredType};

    let stored = StoredType::plain("F32", 4, Some(Codec::Number(Number::F32)));
    let bytes = [2.0_f32, 0.5].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let mut inventory = Inventory::default();
    let scales = StoredTensor { stored, shape: vec![2, 1], bytes, file_offset: 0 };
    inventory.add("a.weight_scale".into(), scales).expect("new");
    let scales = F8Scales::take(&mut inventory, "a.weight", &[2, 130]);
    let codes: Vec<u8> = (0..260).map(|i| (i % 100) as u8).collect();
    let bytes = Bytes::from(codes.clone());
    let step = ElementConversion::Convert { from: Number::F8E4M3, to: Dtype::F32 };
    let one = Piece { bytes: bytes.clone(), step, pairs: None, offset: None, scales };
    let tensor = Rearranged::new(vec![one], ElementOrder::Concatenated, 130);
    assert_eq!(tensor.sources(), [&bytes]);
    let format = Dtype::F8E4M3.format().expect("blocks of 128");
    let [own, scales] = &tensor.in_blocks(format)[..] else { panic!("codes and scales") };
    let row = |codes: &[u8]| [codes, &[0; 126]].concat();
    assert_eq!(made(own), [row(&codes[..130]), row(&codes[130..])].concat());
    assert_eq!(made(scales), [2.0_f32, 2.0, 0.5, 0.5].iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<_>>());
}

#[test]
fn blocks_of_mxfp4_become_codes_and_scales_row_by_row() {
    let block = |scale: u8| [vec![scale], vec![scale | scale << 4; 16]].concat();
    let row = |scales: [u8; 2]| Bytes::from(scales.map(block).concat());
    let pieces = |step| vec![Piece { step, ..piece(row([1, 2])) }, Piece { step, ..piece(row([3, 4])) }];
    let format = Dtype::Mxfp4.format().expect("in blocks");
    let scales =
        Rearranged::new(pieces(ElementConversion::Parameter(format, 0)), ElementOrder::Interleaved { at_once: 2 }, 2);
    assert_eq!(made(&scales), [1, 2, 3, 4]);
    let codes = Rearranged::new(pieces(ElementConversion::Codes(format)), ElementOrder::Interleaved { at_once: 2 }, 64);
    let want: Vec<u8> = [0x11, 0x22, 0x33, 0x44].iter().flat_map(|&pair| [pair; 16]).collect();
    assert_eq!(made(&codes), want);
}
