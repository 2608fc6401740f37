# Sourced by scripts that put programs of Debian packages into a cache directory. The caller sets $work, a directory
# that it removes. tests/node/fetch.sh has its own version: it is also part of a program, without this file.

# apt-get with this system's configuration, but with files in our directory and without another user.
apt() {
	(cd "$work/debs" && apt-get -q -o APT::Sandbox::User=root -o "Dir::Cache=$work/apt" "$@")
}

# Downloads packages (apt verifies their signatures) and unpacks them into $work/root. It installs nothing.
unpack() {
	for tool in apt-get dpkg; do
		command -v "$tool" >/dev/null || {
			echo "fetch $*: $tool is missing: install the programs with this system's package manager" >&2
			exit 1
		}
	done
	mkdir -p "$work/lists/partial" "$work/apt/archives/partial" "$work/debs" "$work/root"
	# Try the machine's package lists first: if they are recent, the download takes a second.
	if ! apt download "$@" >"$work/log" 2>&1; then
		if ! {
			apt -o "Dir::State::lists=$work/lists" update &&
				apt -o "Dir::State::lists=$work/lists" download "$@"
		} >>"$work/log" 2>&1; then
			cat "$work/log" >&2
			echo "fetch $*: apt-get download does not work" >&2
			exit 1
		fi
	fi
	for deb in "$work"/debs/*.deb; do
		dpkg -x "$deb" "$work/root"
		rm "$deb"
	done
}
