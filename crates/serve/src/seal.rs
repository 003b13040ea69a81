//! `encrypted_content`: reasoning that the client keeps for a server that stores nothing.
//!
//! It has the text and the ids, so that the turn goes into the next prompt as the model wrote it. It is sealed
//! (XChaCha20-Poly1305) with a key that only this process has: no one else can read or forge it, and it is useless
//! after the process ends.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, Generate, Key, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::history::Scope;
use chat::{AssistantMessage, MessagePart};

/// The key that seals reasoning for clients to carry.
pub struct Seal {
    cipher: XChaCha20Poly1305,
}

impl Default for Seal {
    /// A new key, from the system's random numbers.
    fn default() -> Self {
        Self { cipher: XChaCha20Poly1305::new(&Key::<XChaCha20Poly1305>::generate()) }
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

/// Bytes in front of what is sealed. 192 bits are enough to be drawn without ever meeting again.
const NONCE_BYTES: usize = 24;

impl Seal {
    /// Reasoning for a client of this scope to carry; None if the message is none.
    pub(crate) fn close(&self, scope: Scope, made: &AssistantMessage) -> Option<String> {
        let MessagePart::Reasoning(text) = &made.part else { return None };
        let open = serde_json::to_vec(&(text, &made.ids)).ok()?;
        let nonce = XNonce::generate();
        let sealed = self.cipher.encrypt(&nonce, Payload { msg: &open, aad: &scope.to_le_bytes() }).ok()?;
        Some(URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat()))
    }

    /// What [`close`](Self::close) made for this scope in this process; None of anything else.
    pub(crate) fn open(&self, scope: Scope, text: &str) -> Option<AssistantMessage> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_BYTES)?;
        let nonce = XNonce::try_from(nonce).ok()?;
        let open = self.cipher.decrypt(&nonce, Payload { msg: sealed, aad: &scope.to_le_bytes() }).ok()?;
        let (text, ids) = serde_json::from_slice(&open).ok()?;
        Some(AssistantMessage { part: MessagePart::Reasoning(text), ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_for_its_scope_in_its_process_and_unchanged() {
        let seal = Seal::default();
        let made = AssistantMessage { part: MessagePart::Reasoning("Look it up.".into()), ids: Some(vec![200_006, 7]) };
        let sealed = seal.close(3, &made).expect("it is reasoning");
        assert_eq!(seal.open(3, &sealed), Some(made.clone()));
        assert_ne!(seal.close(3, &made).expect("it is reasoning"), sealed, "no two are alike");
        assert_eq!(seal.open(4, &sealed), None, "another scope");
        assert_eq!(Seal::default().open(3, &sealed), None, "another process");
        for i in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[i] = if changed[i] == b'A' { b'B' } else { b'A' };
            assert_eq!(seal.open(3, &String::from_utf8(changed).expect("ASCII")), None, "byte {i}");
            assert_eq!(seal.open(3, &sealed[..i]), None, "{i} bytes");
        }
        let content = AssistantMessage { part: MessagePart::Content { text: "a".into(), phase: None }, ids: None };
        assert_eq!(seal.close(3, &content), None);
    }
}
