package image

import (
	"bytes"
	"fmt"
)

// archive is an initial file system: a cpio archive in the format "newc", as Linux unpacks it
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	inode int
}

const (
	cpioDir  = 0o040755
	cpioFile = 0o100755
	trailer  = "TRAILER!!!"
)

// add appends a directory or a file. Directories come before what is in them.
func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	links := 1
	if mode == cpioDir {
		links = 2
	}
	// Magic, inode, mode, uid, gid, links, mtime, size, device and its type (two numbers each), length of the name,
	// check sum: all but the magic in eight hexadecimal digits.
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", a.inode, mode, 0, 0, links, 0,
		len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name)
	a.WriteByte(0)
	a.pad()
	a.Write(content)
	a.pad()
}

// pad aligns to four bytes.
func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// close ends the archive, which then can be unpacked.
func (a *archive) close() []byte {
	a.add(trailer, 0, nil)
	return a.Bytes()
}
