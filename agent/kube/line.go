package kube

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// maxLine is the largest line of the protocol in bytes, its newline included. evictd reads
// lines of at most maxPodSize bytes.
const maxLine = 64 << 10

// errLineTooLong is returned for a line of more bytes than the reader allows.
var errLineTooLong = errors.New("line is too long")

// lineReader reads lines of at most the bytes of its buffer.
type lineReader struct{ r *bufio.Reader }

func newLineReader(r io.Reader, longest int) *lineReader {
	return &lineReader{bufio.NewReaderSize(r, longest)}
}

// next returns the next line without its newline. The line is valid until the next
// call. It returns io.EOF at the end of the stream, and io.ErrUnexpectedEOF if the
// stream ends within a line.
func (l *lineReader) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, errLineTooLong
	case errors.Is(err, io.EOF) && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	return line[:len(line)-1], nil
}

// decodeStrict decodes one JSON value into v. Unknown keys and trailing data are
// errors.
func decodeStrict(line []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// encode returns a message as a line with its newline.
func encode(m *Message) ([]byte, error) {
	line, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(line) >= maxLine {
		return nil, errLineTooLong
	}
	return append(line, '\n'), nil
}
