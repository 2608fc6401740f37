#!/bin/sh
# Unpacks Debian's containerd and runc into a cache directory, for machines that do not have them.
#
#   fetch.sh [CACHE]     CACHE is ${XDG_CACHE_HOME:-$HOME/.cache}/evictd if not given
#
# Nothing is installed, removed, configured or started, and apt's own lists and caches stay as they are: the
# packages are downloaded (apt verifies them as always) and unpacked below CACHE/containerd. What is there
# already is kept. Exit status 0 says that CACHE/containerd/usr/bin/containerd and the others run here.
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

# apt as configured here, but with its files in our directory, and as ourselves: the user _apt that it would
# change to can't write there.
apt() {
	(cd "$work/debs" && apt-get -q -o APT::Sandbox::User=root -o "Dir::Cache=$work/apt" "$@")
}

# The machine's package lists do, if it has any and they are not too old: the download then takes a second.
if ! apt download containerd runc >"$work/log" 2>&1; then
	if ! {
		apt -o "Dir::State::lists=$work/lists" update &&
			apt -o "Dir::State::lists=$work/lists" download containerd runc
	} >>"$work/log" 2>&1; then
		cat "$work/log" >&2
		echo "fetch containerd: apt-get download does not work" >&2
		exit 1
	fi
fi
for deb in "$work"/debs/*.deb; do
	dpkg -x "$deb" "$work/root"
done
all_in "$work/root" || {
	echo "fetch containerd: the packages do not hold containerd, its shim, ctr and runc" >&2
	exit 1
}

# runc re-executes itself with an empty environment, so that LD_LIBRARY_PATH would not reach it: libraries
# have to be the system's. They are (libc, and libseccomp, which apt needs as well), but see.
for file in usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/bin/ctr usr/sbin/runc; do
	if ldd "$work/root/$file" | grep 'not found' >&2; then
		echo "fetch containerd: $file lacks the libraries above" >&2
		exit 1
	fi
done

# Whoever comes second finds the directory complete, and is content with it.
[ -e "$have" ] || mv "$work/root" "$have"
all_in "$have" || {
	echo "fetch containerd: $have is there but not complete: remove it" >&2
	exit 1
}
echo "unpacked containerd and runc into $have"
