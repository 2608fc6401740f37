// Package image makes what virtual machines boot from: a Debian 12 root, Debian's kernels with their modules, and the
// disks and the initial file system that are put together for one run.
//
// Root and kernels are made once and kept in a Cache. An entry's name carries a hash of its recipe, so that a changed
// recipe makes another entry. Everything comes from the Debian archive that the machine's own apt uses, verified with
// the keys that it trusts; nothing is installed on the machine, and no file outside the cache and the temporary
// directory is written.
package image
