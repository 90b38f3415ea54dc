# Shared by the scripts in hack/: steps that say what they do, and what the machine must have.
# shellcheck shell=bash

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
SECONDS=0

# step TEXT: says what comes next and when.
step() {
  printf '[%4ds] %s\n' "$SECONDS" "$*"
}

# have PROGRAM: is it on the PATH, or where Debian keeps a root user's programs?
have() {
  command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]
}

# need_packages: installs what is missing of what building and running takes; services that a package would start on
# its own are kept from starting.
need_packages() {
  local missing=() pair
  for pair in etcd:etcd-server etcdctl:etcd-client containerd:containerd runc:runc nft:nftables ip:iproute2 \
    iptables:iptables protoc:protobuf-compiler cc:gcc; do
    have "${pair%%:*}" || missing+=("${pair##*:}")
  done
  [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
  [ -x /usr/bin/busybox ] && dpkg -s busybox-static >/dev/null 2>&1 || missing+=(busybox-static)
  [ -f /usr/include/google/protobuf/descriptor.proto ] || missing+=(libprotobuf-dev)
  [ ${#missing[@]} -gt 0 ] || return 0
  step "installing ${missing[*]}"
  hold_services
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  release_services
}

# hold_services: until release_services, packages that are installed start no services. What the administrator has
# decided about that is put back afterwards, also when the script breaks off.
policy=/usr/sbin/policy-rc.d
hold_services() {
  [ ! -e $policy ] || mv $policy $policy.navarch
  trap release_services EXIT
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod 755 $policy
}
release_services() {
  rm -f $policy
  [ ! -e $policy.navarch ] || mv $policy.navarch $policy
  trap - EXIT
}

# need_nextest: installs cargo-nextest when it is missing.
need_nextest() {
  cargo nextest --version >/dev/null 2>&1 && return 0
  step "installing cargo-nextest (from crates.io, some minutes)"
  cargo install cargo-nextest --locked --quiet
}
