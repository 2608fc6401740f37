package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// socketPair returns the two ends of a connection.
func socketPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialled, accepted
}

// withdrawal is a message that names an order.
func withdrawal(id string) *Message { return &Message{Withdraw: &OrderID{id}} }

// names reads lines until one has the last ID, and returns the IDs.
func names(t *testing.T, conn net.Conn, last string) (ids []string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for r := bufio.NewReaderSize(conn, maxLine); ; {
		line, err := r.ReadSlice('\n')
		if err != nil {
			t.Fatalf("after %d lines: %v", len(ids), err)
		}
		m, err := decode(line[:len(line)-1])
		if err != nil || m.Withdraw == nil {
			t.Fatalf("line %.100q: %v", line, err)
		}
		if ids = append(ids, m.Withdraw.ID); m.Withdraw.ID == last {
			return ids
		}
	}
}

// TestWriteNow: what waits is written on the caller's goroutine, also when the last write deadline has passed.
func TestWriteNow(t *testing.T) {
	conn, peer := socketPair(t)
	b := newOutbox()
	b.begin(conn, nil)
	if err := conn.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	b.message(withdrawal("a"))
	b.message(withdrawal("b"))
	b.add(outgoing{written: written})
	b.writeNow()
	select {
	case <-written:
	default:
		t.Error("writeNow() has returned, and who waits for the messages does not know that they were written")
	}
	if ids := names(t, peer, "b"); len(ids) != 2 {
		t.Errorf("read %v; want a and b", ids)
	}
	if n, err := b.writeNext(conn, nil); n != 0 || err != nil {
		t.Errorf("writeNext() = %d, %v; want nothing left", n, err)
	}
}

// TestWriteNowNeverBlocks: a peer that does not read does not keep the caller, and gets all messages in order, none of
// them torn, when it reads.
func TestWriteNowNeverBlocks(t *testing.T) {
	conn, peer := socketPair(t)
	b := newOutbox()
	b.begin(conn, nil)
	// Lines of this length do not fill the socket's buffer exactly.
	long := func(i int) string { return fmt.Sprintf("%07d", i) + strings.Repeat("x", 120) }
	count := 0
	for ; len(b.left) == 0; count++ {
		if count == 100000 {
			t.Fatal("the socket takes whatever is written")
		}
		b.message(withdrawal(long(count)))
		b.writeNow()
	}
	torn := len(b.left)
	for range 3 { // another write would tear the line that the socket has in part
		b.message(withdrawal(long(count)))
		b.writeNow()
		count++
	}
	if len(b.left) != torn || len(b.queue) != 3 {
		t.Errorf("%d bytes left, %d messages wait; want %d, 3", len(b.left), len(b.queue), torn)
	}
	written := make(chan struct{})
	b.add(outgoing{written: written})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.write(ctx, conn, nil) }()
	for i, id := range names(t, peer, long(count-1)) {
		if id != long(i) {
			t.Fatalf("message %d is %.20q; want %.20q", i, id, long(i))
		}
	}
	<-written
	cancel()
	if err := <-done; err != nil {
		t.Errorf("write() = %v", err)
	}
	if b.conn != nil {
		t.Error("writeNow can still write after write has returned")
	}
}

// TestWriteNowWhileWriting: the caller does not wait for a write that hangs.
func TestWriteNowWhileWriting(t *testing.T) {
	conn, _ := socketPair(t)
	b := newOutbox()
	b.begin(conn, nil)
	b.message(withdrawal("a"))
	b.writing.Lock()
	b.writeNow() // would wait for ever
	b.writing.Unlock()
	if len(b.queue) != 1 {
		t.Errorf("%d messages wait; want 1", len(b.queue))
	}
}

// TestWriteNowFails: an error ends the session, as one of write does.
func TestWriteNowFails(t *testing.T) {
	conn, peer := socketPair(t)
	b := newOutbox()
	b.begin(conn, nil)
	peer.Close()
	b.message(withdrawal("a"))
	b.writeNow()
	if _, err := b.writeNext(conn, nil); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("writeNext() = %v; want %v", err, syscall.EPIPE)
	}
}

// TestWriteNowWithoutDescriptor: a connection without a descriptor is left to write, and so is all before it begins.
func TestWriteNowWithoutDescriptor(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	box := newOutbox()
	box.message(withdrawal("a"))
	box.writeNow()
	box.begin(a, nil)
	box.writeNow()
	if len(box.queue) != 1 {
		t.Errorf("%d messages wait; want 1", len(box.queue))
	}
}

// TestEndedIsWrittenAtOnce: when the last process of a pod is gone, its order is written before Ended returns.
func TestEndedIsWrittenAtOnce(t *testing.T) {
	orders := NewOrders(OrdersOptions{Save: func() {}, Log: slog.New(slog.DiscardHandler)})
	conn, peer := socketPair(t)
	box := newOutbox()
	orders.attach(box)
	if _, err := orders.Begin(eviction("u", "")); err != nil {
		t.Fatal(err)
	}
	box.take() // its stage before
	box.begin(conn, func(key string) *Message { return &Message{Order: orders.lookup(key)} })
	orders.Ended("u")
	if err := peer.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(peer).ReadString('\n')
	if err != nil || !strings.Contains(line, string(StageEnded)) {
		t.Errorf("read %q, %v; want the order with stage %s", line, err, StageEnded)
	}
}
