package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// factsName is the file with the facts about the node's pods. It is a separate file because
// it changes with the pods and not with the decision, and can have a few megabytes.
const factsName = "facts.json"

// factsBuffer is how much of the facts is written at once, in bytes.
const factsBuffer = 16 << 10

// SaveFacts replaces the saved facts by what write writes. Save does not wait for it.
func (s *Store) SaveFacts(write func(io.Writer) error) error {
	if err := s.prepare(); err != nil {
		return err
	}
	return replaceFile(filepath.Join(s.dir, factsName), true, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, factsBuffer)
		if err := write(buffered); err != nil {
			return err
		}
		return buffered.Flush()
	})
}

// LoadFacts returns the saved facts; nil and no error if there are none. A file that
// can't be read is moved aside, as by Load, and the error is a *CorruptError.
func (s *Store) LoadFacts() ([]byte, error) {
	path := filepath.Join(s.dir, factsName)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.noteMissed(factsName)
		return nil, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFileSize) {
		err = fmt.Errorf("not a regular file of at most %d bytes", maxFileSize)
	}
	var content []byte
	if err == nil {
		content, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, s.RejectFacts(err)
	}
	return content, nil
}

// RejectFacts moves saved facts aside that the caller could not decode, and returns a
// *CorruptError. A file that can't be moved is replaced by the next SaveFacts: the
// API server has its content too.
func (s *Store) RejectFacts(cause error) error {
	path := filepath.Join(s.dir, factsName)
	kept := path + corruptSuffix
	if err := os.Rename(path, kept); err != nil {
		return &CorruptError{Path: path, Err: fmt.Errorf("%w; %w", cause, err)}
	}
	return &CorruptError{Path: path, MovedTo: kept, Err: cause}
}
