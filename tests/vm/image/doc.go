// Package image builds the images of virtual machines: a Debian 12 root file system, Debian's kernels with their
// modules, and the disks and the initial file system of a run.
//
// Root and kernels are built once and stay in a Cache. The name of an entry has a hash of its recipe, so that a changed
// recipe builds a new entry. All packages come from the Debian archive in the machine's apt sources, verified with the
// keys that apt trusts. The package installs nothing, and writes only to the cache and the temporary directory.
package image
