//! authn
