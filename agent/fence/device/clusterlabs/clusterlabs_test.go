package clusterlabs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         fence.Power
		err          string
	}{
		{"on", `echo "Status: ON"`, fence.PowerOn, ""},
		{"off", `echo "Status: OFF"; exit 2`, fence.PowerOff, ""},
		{"off after other output", `head -c 100000 /dev/zero; echo; echo "Status: off"; exit 2`, fence.PowerOff, ""},
		{"usage error", `echo "usage: fence_x" >&2; exit 2`, fence.PowerUnknown,
			`action status of fence_x: exit status 2 without "Status: OFF", which proves nothing: usage: fence_x`},
		{"interpreter without its program", "#!/bin/sh /does/not/exist", fence.PowerUnknown, "action status of fence_x: exit status "},
		{"off that exits with 0", `echo "Status: OFF"`, fence.PowerOn, ""},
		{"off that exits with 1", `echo "Status: OFF"; exit 1`, fence.PowerUnknown, "action status of fence_x: exit status 1: it printed no error"},
		{"off on stderr", `echo "Status: OFF" >&2; exit 2`, fence.PowerUnknown, "action status of fence_x: exit status 2 without"},
		{"failure", `for i in 1 2 3 4 5 6; do echo "line  $i" >&2; echo >&2; done; exit 1`, fence.PowerUnknown,
			"action status of fence_x: exit status 1: line  2; line  3; line  4; line  5; line  6"},
		{"signal", `kill -9 $$`, fence.PowerUnknown, "action status of fence_x: ended by a signal: it printed no error"},
		{"all other codes", `echo "Status: OFF"; exit 3`, fence.PowerUnknown, "action status of fence_x: exit status 3"},
	} {
		d, _ := newDevice(t, tt.script, nil)
		got, err := d.Status(t.Context())
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%s: Status = %s, %v; want %s, %s", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func TestControl(t *testing.T) {
	for _, tt := range []struct{ name, script, err string }{
		{"success", "exit 0", ""},
		{"failure", "echo no plug >&2; exit 1", "action off of fence_x: it may have taken effect: exit status 1: no plug"},
		{"exit status 2", "exit 2", "action off of fence_x: it may have taken effect: exit status 2: it printed no error"},
		{"signal", "kill -9 $$", "action off of fence_x: it may have taken effect: ended by a signal: it printed no error"},
	} {
		d, _ := newDevice(t, tt.script, nil)
		err := d.Off(t.Context())
		if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: Off = %v; want %s", tt.name, err, tt.err)
		}
		if errors.Is(err, device.ErrRefused) {
			t.Errorf("%s: Off = %v, which is device.ErrRefused; the agent may have sent the command", tt.name, err)
		}
	}
	if d, _ := newDevice(t, "exit 0", nil); d.On(t.Context()) != nil {
		t.Error("On with exit status 0 is an error")
	}
}

// TestInput: agents get everything by stdin, and always an action, because their default is reboot.
func TestInput(t *testing.T) {
	t.Setenv("EVICTD_SECRET", "hunter2")
	d, dir := newDevice(t, `cat >$dir/in; echo $# >$dir/argc; env >$dir/env; pwd >>$dir/env`,
		map[string]string{"ip": "192.0.2.1", "passwd": "a=b #c", "plug": "2"}, "passwd")
	for action, call := range map[string]func(context.Context) error{"on": d.On, "off": d.Off,
		"status": func(ctx context.Context) error { _, err := d.Status(ctx); return err }} {
		if err := call(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := read(t, dir, "in"), "ip=192.0.2.1\npasswd=a=b #c\nplug=2\naction="+action+"\n"; got != want {
			t.Errorf("stdin = %q; want %q", got, want)
		}
	}
	if got := read(t, dir, "argc"); got != "0\n" {
		t.Errorf("arguments: %s; want 0: with one an agent does not read stdin", got)
	}
	for line := range strings.Lines(read(t, dir, "env")) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "PATH", "LANG", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "/":
		default:
			t.Errorf("the agent has %q in its environment", line)
		}
	}
	if text := d.String() + d.GoString(); strings.Contains(text, "a=b") {
		t.Errorf("String = %s, with a password", text)
	}
	if uuid, err := d.UUID(t.Context()); uuid != "" || err != nil {
		t.Errorf("UUID = %q, %v; want none", uuid, err)
	}
}

func TestNewRefuses(t *testing.T) {
	dir := install(t, "exit 0")
	for name, parameters := range map[string]map[string]string{
		"action":          {"action": "reboot"},
		"Action":          {"Action": "reboot"},
		"line break":      {"ip": "192.0.2.1\naction=reboot"},
		"line break key":  {"ip=1\naction": "reboot"},
		"comment":         {"#ip": "x"},
		"trailing blank":  {"password": "hunter2 "},
		"double quotes":   {"password": `"hunter2"`},
		"NUL":             {"password": "hunter2\x00"},
		"carriage return": {"password": "hunter2\rx"},
		"line separator":  {"password": "hunter2\u2028x"},
		"next line":       {"password": "hunter2\u0085x"},
		"not UTF-8":       {"password": "hunter2\xff"},
		"too long":        {"password": strings.Repeat("hunter2", 1000)},
	} {
		_, err := New(Options{dir, "fence_x", parameters, nil})
		if !errors.Is(err, device.ErrRefused) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: New = %v; want device.ErrRefused, without the value", name, err)
		}
	}
	for _, value := range []string{`"`, `a"b"`, `"a`, "#x", "=", "a b", "a\tb", "ä", "'x'"} {
		if _, err := New(Options{dir, "fence_x", map[string]string{"password": value}, nil}); err != nil {
			t.Errorf("New with the password %q: %v; agents accept it", value, err)
		}
	}
}

func TestFind(t *testing.T) {
	dir := install(t, "exit 0")
	file := func(name string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("#!/bin/sh\n"), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	open := directory(t)
	if err := errors.Join(os.WriteFile(filepath.Join(open, "fence_open"), []byte("#!/bin/sh\n"), 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	file("fence_plain", 0o600)
	file("fence_group", 0o770)
	file("fence_all", 0o707)
	link("fence_x", "fence_link")
	link("fence_group", "fence_link_group")
	link(filepath.Join(open, "fence_open"), "fence_elsewhere")
	link("fence_loop", "fence_loop")
	if err := os.Mkdir(filepath.Join(dir, "fence_dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		file("fence_foreign", 0o755)
		if err := os.Chown(filepath.Join(dir, "fence_foreign"), 65534, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(dir, "fence_foreign"); err == nil || !strings.Contains(err.Error(), "is owned by user 65534: chown it to root") {
			t.Errorf("Find of a file of another user = %v; want an error", err)
		}
	}
	for _, tt := range []struct{ dir, name, want string }{
		{dir, "fence_x", ""},
		{dir, "fence_link", ""},
		{dir, "fence_missing", "no such file"},
		{"/does/not/exist", "fence_x", "no such file"},
		{dir, "fence_plain", "is not executable: chmod a+x it"},
		{dir, "fence_group", "can be written by other users: chmod go-w it"},
		{dir, "fence_all", "can be written by other users"},
		{dir, "fence_link_group", "can be written by other users"},
		{dir, "fence_elsewhere", "can be written by other users"},
		{open, "fence_open", "can be written by other users"},
		{dir, "fence_loop", "too many links"},
		{dir, "fence_dir", "is not a regular file"},
		{dir, "sh", "its name is not fence_NAME"},
		{dir, "fence_/../fence_x", "its name is not fence_NAME"},
		{filepath.Dir(dir), filepath.Base(dir) + "/fence_x", "its name is not fence_NAME"},
		{dir, "", "its name is not fence_NAME"},
	} {
		path, err := Find(tt.dir, tt.name)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Find(%s, %q) = %s, %v; want %s", tt.dir, tt.name, path, err, tt.want)
		}
		if want := filepath.Join(tt.dir, tt.name); err == nil && path != want {
			t.Errorf("Find(%s, %q) = %s; want %s", tt.dir, tt.name, path, want)
		}
		if _, err := New(Options{Directory: tt.dir, Agent: tt.name}); (err == nil) != (tt.want == "") || err != nil && !errors.Is(err, device.ErrRefused) {
			t.Errorf("New(%s, %q) = %v; want device.ErrRefused", tt.dir, tt.name, err)
		}
	}
}

func TestForeign(t *testing.T) {
	for _, tt := range []struct {
		owner, user int
		want        bool
	}{{0, 0, false}, {0, 61120, false}, {61120, 61120, false}, {1000, 61120, true}, {1000, 0, true}, {-1, 0, true}} {
		if got := foreign(tt.owner, tt.user); got != tt.want {
			t.Errorf("foreign(%d, %d) = %t; want %t", tt.owner, tt.user, got, tt.want)
		}
	}
}

// TestNotStarted: if no process was started, nothing was sent.
func TestNotStarted(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name, script string
		ctx          context.Context
	}{
		{"no interpreter", "#!/does/not/exist\n", t.Context()},
		{"ended context", "exit 0", ended},
	} {
		d, _ := newDevice(t, tt.script, nil)
		for action, call := range map[string]func(context.Context) error{"off": d.Off, "on": d.On} {
			if err := call(tt.ctx); !errors.Is(err, device.ErrRefused) {
				t.Errorf("%s: %s = %v; want device.ErrRefused", tt.name, action, err)
			}
		}
		if power, err := d.Status(tt.ctx); power != fence.PowerUnknown || err == nil {
			t.Errorf("%s: Status = %s, %v; want unknown", tt.name, power, err)
		}
	}
}

func TestMetadata(t *testing.T) {
	for _, tt := range []struct{ name, script, want, err string }{
		{"metadata", `read line; echo "<$line>"; cat`, "<action=metadata>\n", ""},
		{"failure", `echo "No module named 'requests'" >&2; exit 1`, "", "fence_x: exit status 1: No module named 'requests'"},
		{"too long", `head -c 2000000 /dev/zero`, "", "it is longer than 1048576 bytes"},
	} {
		got, err := Metadata(t.Context(), install(t, tt.script), "fence_x")
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: Metadata = %q, %v; want %q, %s", tt.name, got, err, tt.want, tt.err)
		}
	}
	if _, err := Metadata(t.Context(), t.TempDir(), "fence_x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Metadata of a missing agent = %v; want fs.ErrNotExist", err)
	}
}
