//! Tables: the columns and cells that `kubectl get` shows, as upstream's server prints them.
