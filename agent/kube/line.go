package kube

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the largest line of the protocol in bytes, its newline included.
const MaxLine = 64 << 10

// ErrLineTooLong is returned for a line of more than MaxLine bytes.
var ErrLineTooLong = fmt.Errorf("line of more than %d bytes", MaxLine)

// lineReader reads lines of at most MaxLine bytes.
type lineReader struct{ r *bufio.Reader }

func newLineReader(r io.Reader) *lineReader { return &lineReader{bufio.NewReaderSize(r, MaxLine)} }

// next returns the next line without its newline. The line is valid until the next
// call. It returns io.EOF at the end of the stream, and io.ErrUnexpectedEOF if the
// stream ends within a line.
func (l *lineReader) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, ErrLineTooLong
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
	if len(line) >= MaxLine {
		return nil, ErrLineTooLong
	}
	return append(line, '\n'), nil
}
