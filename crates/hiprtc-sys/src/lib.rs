//! hipRTC, opened at run time with dlopen; nothing is linked at build time.
