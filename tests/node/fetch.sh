#!/bin/sh
# Unpacks Debian's containerd and runc into a cache directory, for machines without them.
#
#   fetch.sh [CACHE]     CACHE is ${XDG_CACHE_HOME:-$HOME/.cache}/evictd if not given
#
# It installs, removes, configures and starts nothing, and does not change apt's own lists and caches: it downloads
# the packages (apt verifies their signatures) and unpacks them below CACHE/containerd. It keeps what is already
# there. Exit status 0 means that CACHE/containerd/usr/bin/containerd and the other programs can run here.
set -eu

cache=${1:-${XDG_CACHE_HOME:-${HOME:?is not set, and no cache directory was given}/.cache}/evictd}
have=$cache/containerd

all_in() {
	for file in usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/bin/ctr usr/sbin/runc; do
		[ -x "$1/$file" ] || return 1
	done
}

if all_in "$have"; then
	echo "containerd and runc are in $have"
	exit 0
fi

for tool in apt-get dpkg ldd; do
	command -v "$tool" >/dev/null || {
		echo "fetch containerd: $tool is missing: install containerd and runc with this system's package manager" >&2
		exit 1
	}
done

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/lists/partial" "$work/apt/archives/partial" "$work/debs" "$work/root"

# apt-get with the system's configuration, but with its files in the work directory. It runs as the current user,
# because the user _apt can't write there.
apt() {
	(cd "$work/debs" && apt-get -q -o APT::Sandbox::User=root -o "Dir::Cache=$work/apt" "$@")
}

# Try the machine's package lists first: if they are recent, the download takes a second.
if ! apt download containerd runc >"$work/log" 2>&1; then
	if ! {
		apt -o "Dir::State::lists=$work/lists" update &&
			apt -o "Dir::State::lists=$work/lists" download containerd runc
	} >>"$work/log" 2>&1; then
		cat "$work/log" >&2
		echo "fetch containerd: apt-get download failed" >&2
		exit 1
	fi
fi
for deb in "$work"/debs/*.deb; do
	dpkg -x "$deb" "$work/root"
done
all_in "$work/root" || {
	echo "fetch containerd: the packages do not contain containerd, its shim, ctr and runc" >&2
	exit 1
}

# runc re-executes itself with an empty environment, without LD_LIBRARY_PATH, so the libraries must be the system's.
# They usually are (libc, and libseccomp, which apt needs too); check it.
for file in usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/bin/ctr usr/sbin/runc; do
	if ldd "$work/root/$file" | grep 'not found' >&2; then
		echo "fetch containerd: $file lacks the libraries above" >&2
		exit 1
	fi
done

# A concurrent fetch.sh may have created the directory: keep it.
[ -e "$have" ] || mv "$work/root" "$have"
all_in "$have" || {
	echo "fetch containerd: $have exists but is incomplete: remove it" >&2
	exit 1
}
echo "unpacked containerd and runc into $have"
