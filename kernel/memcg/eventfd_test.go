package memcg

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/internal/sys"
)

// testNotifier returns a notifier whose eventfd the test signals.
func testNotifier(t *testing.T) *notifier {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	h, c := fixture(t, nil)
	n := &notifier{target: target{h, c}, fd: sys.New(fd)}
	t.Cleanup(func() { n.Close() })
	return n
}

func TestDrain(t *testing.T) {
	n := testNotifier(t)
	for _, signals := range []uint64{0, 1, 3, 0} {
		for range signals {
			if _, err := unix.Write(n.FD(), binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := n.Drain(); got != signals || err != nil {
			t.Errorf("Drain() after %d signals = %d, %v", signals, got, err)
		}
	}
	n.Close()
	if _, err := n.Drain(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Drain() after Close = %v; want %v", err, os.ErrClosed)
	}
}
