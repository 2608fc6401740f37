package kube

import (
	"net"
	"slices"
	"time"
)

// send writes a message.
func send(conn net.Conn, m *Message) error {
	line, err := encode(m)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = conn.Write(line)
	return err
}

// write writes lines. evictd throttles what it reads: the largest take 0.2 s each (decodeRate).
func write(conn net.Conn, batch [][]byte) error {
	for lines := range slices.Chunk(batch, chunk) {
		if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		buffers := net.Buffers(lines)
		if _, err := buffers.WriteTo(conn); err != nil {
			return err
		}
	}
	return nil
}
