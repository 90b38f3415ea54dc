//! Resource quantities: exact decimal and binary numbers with suffixes (apimachinery `api/resource`).
