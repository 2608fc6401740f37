package image

import (
	"bytes"
	"fmt"
)

// archive is an initial file system: a cpio archive in the newc format, which Linux unpacks
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

// add appends a directory or a file. A directory must be added before its content.
func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	links := 1
	if mode == cpioDir {
		links = 2
	}
	// Magic, inode, mode, uid, gid, links, mtime, size, device and its type (two numbers each), length of the name,
	// checksum: all but the magic are eight hexadecimal digits.
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", a.inode, mode, 0, 0, links, 0,
		len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name)
	a.WriteByte(0)
	a.pad()
	a.Write(content)
	a.pad()
}

// pad aligns the archive to four bytes.
func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// close appends the trailer.
func (a *archive) close() []byte {
	a.add(trailer, 0, nil)
	return a.Bytes()
}
