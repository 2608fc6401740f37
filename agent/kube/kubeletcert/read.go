// Package kubeletcert reads the certificates that the kubelet of this node serves with, so that
// evictd-kube can recognize it. evictd calls it; evictd-kube may not read the kubelet's directory.
package kubeletcert

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// The files with a kubelet's serving certificate, below its root directory: one that it has signed
// itself, and one that the cluster has signed (serverTLSBootstrap), which has the key behind the
// certificate.
var names = []string{"kubelet.crt", "kubelet-server-current.pem"}

// maxFile is the size of the largest file that is read.
const maxFile = 64 << 10

// Read returns the serving certificates in the kubelet's root directory, as this process sees it,
// without their chains and their keys (PEM). It returns "" if there are none. A file that can't
// be used is logged. Read may block.
func Read(root string, log *slog.Logger) string {
	var all []byte
	for _, name := range names {
		certificate, err := leaf(filepath.Join(root, "pki"), name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			log.Warn("could not read a serving certificate of the kubelet; its configuration may stay unknown", "error", err)
			continue
		}
		all = append(all, certificate...)
	}
	return string(all)
}

// leaf returns the first certificate of a file.
func leaf(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	// The link to the present certificate has the path that the host sees.
	if target, err := os.Readlink(path); err == nil {
		path = filepath.Join(dir, filepath.Base(target))
	}
	content, err := read(path)
	defer clear(content) // it has the key
	if err != nil {
		return nil, fmt.Errorf("read certificate of the kubelet: %w", err)
	}
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, fmt.Errorf("%s has no certificate", path)
		}
		if block.Type != "CERTIFICATE" {
			clear(block.Bytes)
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: bytes.Clone(block.Bytes)}), nil
	}
}

// read returns the content of a regular file of at most maxFile bytes. A kubelet is root, so that
// no other user can put another file there.
func read(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxFile)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content := make([]byte, info.Size()) // io.ReadAll would leave copies of the key
	n, err := io.ReadFull(f, content)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return content[:n], err
}
