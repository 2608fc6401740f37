package peers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// minKey and maxKey limit the length of a key in bytes.
	minKey, maxKey = 32, 256
	// maxKeys is the number of keys: the new and the old one while they are changed.
	maxKeys = 2
)

// readKeys reads the file of the keys: one a line, the first one for questions.
func readKeys(path string) ([][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of the peers: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxKeys*(maxKey+2)+1))
	if err != nil {
		return nil, fmt.Errorf("read the key of the peers: %w", err)
	}
	keys, err := parseKeys(content)
	if err != nil {
		return nil, fmt.Errorf("key of the peers in %s: %w", path, err)
	}
	return keys, nil
}

// parseKeys parses the content of the file. Errors do not have it.
func parseKeys(content []byte) ([][]byte, error) {
	if len(content) > maxKeys*(maxKey+2) {
		return nil, errors.New("the file is too long")
	}
	var keys [][]byte
	for line := range bytes.Lines(content) {
		key := bytes.TrimSpace(line)
		switch {
		case len(key) == 0:
			continue
		case len(key) < minKey || len(key) > maxKey:
			return nil, fmt.Errorf("a line of %d bytes; want %d to %d: openssl rand -hex 32 makes a key", len(key), minKey, maxKey)
		}
		keys = append(keys, bytes.Clone(key))
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("%d keys; want one, or a second one while they are changed", len(keys))
	}
	return keys, nil
}
