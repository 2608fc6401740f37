package watchdog

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestReadAttributes(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  Attributes
		err   string
	}{
		{"hardware", map[string]string{"d/identity": "iTCO_wdt\n", "d/nowayout": "1\n"}, Attributes{"iTCO_wdt", true}, ""},
		{"softdog", map[string]string{"d/identity": "Software Watchdog\n", "d/nowayout": "0\n"}, Attributes{"Software Watchdog", false}, ""},
		{"no nowayout", map[string]string{"d/identity": "x\n"}, Attributes{}, "not available"},
		{"empty", map[string]string{"d/identity": "x\n", "d/nowayout": ""}, Attributes{}, "want 0 or 1"},
		{"another number", map[string]string{"d/identity": "x\n", "d/nowayout": "2\n"}, Attributes{}, "want 0 or 1"},
	} {
		got, err := readAttributes(kernel.FS(kerneltest.Tree(t, test.files)).Path("d"))
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: readAttributes = %+v, %v; want %+v, %q", test.name, got, err, test.want, test.err)
		}
	}
	root := kernel.FS(kerneltest.Tree(t, map[string]string{"class/watchdog/watchdog0/identity": "x\n"}))
	if _, err := ReadAttributes(root, "/dev/null"); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("ReadAttributes(/dev/null) = %v; want that it has no attributes", err)
	}
	if _, err := ReadAttributes(root, root.Path("class")); err == nil || !strings.Contains(err.Error(), "character device") {
		t.Errorf("ReadAttributes of a directory = %v", err)
	}
}

func TestSameDevice(t *testing.T) {
	misc, watchdog0, watchdog1, null := unix.Mkdev(10, 130), unix.Mkdev(246, 0), unix.Mkdev(246, 1), unix.Mkdev(10, 63)
	for _, test := range []struct {
		a, b uint64
		want bool
	}{{misc, misc, true}, {misc, watchdog0, true}, {watchdog0, misc, true}, {misc, watchdog1, false}, {watchdog0, watchdog1, false}, {misc, null, false}} {
		if got := sameDevice(test.a, test.b); got != test.want {
			t.Errorf("sameDevice(%d:%d, %d:%d) = %t; want %t", unix.Major(test.a), unix.Minor(test.a), unix.Major(test.b), unix.Minor(test.b), got, test.want)
		}
	}
}
