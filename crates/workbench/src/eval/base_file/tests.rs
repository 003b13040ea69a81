//! Files by hand: every byte is derived here from the layout, not from what the writer does.

use super::*;

/// A window of four tokens, of which the one behind position 2 is scored, and a vocabulary of three.
///
/// The logits are 0, -1 and -32, so that the largest is 0 and the least that is told apart -16. Codes are 65535 for 0,
/// 15/16 * 65535 = 61439.06 for -1, and 0. The sum of exponentials is 1 + e^-1, its logarithm 0.3132617.
fn by_hand() -> Vec<u8> {
    let mut bytes = b"_logits_".to_vec();
    bytes.extend([4, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0]);
    bytes.extend([2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    bytes.extend((16.0_f32 / 65535.0).to_le_bytes());
    bytes.extend((-16.313_261_f32).to_le_bytes());
    bytes.extend([0xff, 0xff, 0xff, 0xef, 0x00, 0x00]);
    bytes.extend([0, 0]); // the vocabulary counts as even
    bytes
}

const LOGITS: [f32; 3] = [0.0, -1.0, -32.0];

fn windows() -> Windows {
    Windows::new(vec![2, 0, 1, 1, 0], 4, None, None).expect("one window")
}

fn read(bytes: &[u8], most: Option<usize>) -> Result<BaseFile, BaseFileError> {
    BaseFile::read(Bytes::copy_from_slice(bytes), most)
}

#[test]
fn what_is_written_is_what_a_hand_derives() {
    let mut written = header(&windows(), 3);
    written.extend(encoded(&Distribution::new(&LOGITS).expect("numbers")));
    assert_eq!(written, by_hand());
}

#[test]
fn a_row_gives_back_what_its_logits_said() {
    let file = read(&by_hand(), None).expect("a file");
    assert_eq!((file.context(), file.tokens()), (4, &[2, 0, 1, 1][..]));
    file.check(&windows(), 3).expect("the same text");
    let same = Distribution::new(&LOGITS).expect("numbers");
    let compared = file.row(0, 0).compare(&same, 1);
    // A code is off by half a step, 16 / 65535 / 2, at most.
    assert!((compared.base_nll - 1.313_262).abs() < 1.3e-4 && compared.is_same_best, "{compared:?}");
    assert!(compared.divergence.abs() < 1.3e-4, "{compared:?}");

    // Of (0.731, 0.269) from (1/2, 1/2) it is 0.731 ln 1.462 + 0.269 ln 0.538 = 0.1110; the third token is left out.
    let other = Distribution::new(&[5.0, 5.0, -90.0]).expect("numbers");
    let compared = file.row(0, 0).compare(&other, 1);
    assert!((compared.divergence - 0.1110).abs() < 2e-4, "{compared:?}");
    let other = Distribution::new(&[5.0, 6.0, -90.0]).expect("numbers");
    assert!(!file.row(0, 0).compare(&other, 1).is_same_best);
}

#[test]
fn equal_logits_have_no_range_and_are_written_all_the_same() {
    let row = encoded(&Distribution::new(&[3.0; 5]).expect("numbers"));
    assert_eq!(row[..4], [0; 4]);
    assert!(row.len() == 8 + 2 * 6 && row[8..].iter().all(|byte| *byte == 0));
    let least = f32::from_le_bytes(row[4..8].try_into().expect("four bytes"));
    assert!((least + 5_f32.ln()).abs() < 1e-6, "{least}");
}

#[test]
fn a_file_that_lies_is_told_with_what_was_expected() {
    let right = by_hand();
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = right.clone();
        change(&mut bytes);
        read(&bytes, None).expect_err("wrong")
    };
    assert_eq!(error(&|bytes| bytes[0] = b'-'), BaseFileError::Magic);
    assert_eq!(error(&|bytes| bytes.truncate(3)), BaseFileError::Magic);
    assert_eq!(
        error(&|bytes| bytes.truncate(10)),
        BaseFileError::Header { name: "tokens of a window", found: 0, expected: 3 }
    );
    assert_eq!(
        error(&|bytes| bytes[12..16].fill(0xff)),
        BaseFileError::Header { name: "vocabulary", found: -1, expected: 1 }
    );
    assert_eq!(error(&|bytes| bytes[20] = 3), BaseFileError::Token { index: 0, found: 3, vocab_size: 3 });
    let short = error(&|bytes| bytes.truncate(50));
    assert_eq!(short.to_string(), "the file has 50 bytes, expected 52 (windows: 1)");
    assert_eq!(short.hint().as_deref(), Some("the file was cut off; write it again"));
    assert!(matches!(error(&|bytes| bytes.push(0)), BaseFileError::Length { found: 53, expected: 52, .. }));
    // Sizes that no file has, and whose product no number holds.
    assert!(matches!(error(&|bytes| bytes[8..20].fill(0x7f)), BaseFileError::Length { n_whole: 0, .. }));
}

#[test]
fn whole_windows_of_a_file_that_was_cut_off_are_used_if_that_is_asked_for() {
    let windows = Windows::new(vec![0, 1, 2, 2, 1, 0, 0, 1], 4, None, None).expect("two windows");
    let mut bytes = header(&windows, 3);
    let row = encoded(&Distribution::new(&LOGITS).expect("numbers"));
    bytes.extend([&row[..], &row[..row.len() - 1]].concat());
    let error = read(&bytes, None).expect_err("cut off");
    assert_eq!(error.hint().as_deref(), Some("the file was cut off; `--chunks 1` takes the windows that are whole"));
    assert!(read(&bytes, Some(2)).is_err());
    let file = read(&bytes, Some(1)).expect("the first window");
    assert_eq!(file.row(0, 0).codes, &row[8..14]);
}

#[test]
fn another_text_vocabulary_or_window_is_told() {
    let file = read(&by_hand(), None).expect("a file");
    let cut = |tokens: &[u32], context| Windows::new(tokens.to_vec(), context, None, None).expect("windows");
    assert_eq!(file.check(&windows(), 4), Err(BaseFileError::Vocabulary { found: 3, expected: 4 }));
    assert_eq!(file.check(&cut(&[2, 0, 1], 3), 3), Err(BaseFileError::Context { found: 4, expected: 3 }));
    let other = file.check(&cut(&[2, 0, 0, 1], 4), 3);
    assert_eq!(other, Err(BaseFileError::OtherText { index: 2, found: 1, expected: 0 }));
    let longer = file.check(&cut(&[2, 0, 1, 1, 0, 0, 0, 0], 4), 3);
    assert_eq!(longer, Err(BaseFileError::TooFewWindows { found: 1, expected: 2 }));
}

#[test]
fn whatever_a_byte_says_a_file_is_an_error_or_can_be_read() {
    let right = by_hand();
    let mut n_read = 0;
    for at in 0..right.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut bytes = right.clone();
            bytes[at] ^= bits;
            for bytes in [&bytes[..], &bytes[..at]] {
                for most in [None, Some(1), Some(usize::MAX)] {
                    let Ok(file) = read(bytes, most) else { continue };
                    let distribution = Distribution::new(&LOGITS).expect("numbers");
                    file.row(0, 0).compare(&distribution, 2);
                    n_read += 1;
                }
            }
        }
    }
    // Bytes of rows may be anything, and so may be the lowest bits of tokens.
    assert!(n_read >= 3 * 3 * 14, "{n_read}");
}
