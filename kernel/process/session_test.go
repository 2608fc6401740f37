package process

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// childSessionNice tests SetSessionNice before and after it becomes a session leader.
func childSessionNice() {
	const proc = kernel.FS("/proc")
	err := SetSessionNice(proc, 5)
	check(errors.Is(err, kernel.ErrUnavailable), "SetSessionNice() in the session of another = %v; want ErrUnavailable", err)
	_, err = unix.Setsid()
	must(err)
	dir, err := os.MkdirTemp("", "")
	must(err)
	err = SetSessionNice(kernel.FS(dir), 5)
	must(os.Remove(dir)) // not deferred: check exits
	check(errors.Is(err, kernel.ErrUnavailable), "SetSessionNice() without the file = %v; want ErrUnavailable", err)
	err = SetSessionNice(proc, 5)
	if errors.Is(err, kernel.ErrUnavailable) {
		skip("needs autogroup scheduling: %v", err)
	}
	must(err)
	text, err := os.ReadFile(proc.Path("self", "autogroup"))
	must(err)
	check(strings.HasSuffix(string(text), " nice 5\n"), "autogroup %q; want nice 5", text)
	err = SetSessionNice(proc, 20)
	check(err != nil && !errors.Is(err, kernel.ErrUnavailable), "SetSessionNice(20) = %v; want the kernel's error", err)
}

func TestSetSessionNice(t *testing.T) { succeeds(t, "session nice") }
