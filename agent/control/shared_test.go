package control

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestListenShared(t *testing.T) {
	gid := os.Getegid()
	if os.Geteuid() == 0 {
		gid = 61119
	}
	path := filepath.Join(socketDir(t), "kube.sock")
	l, err := ListenShared(path, gid)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm() != 0o660 || int(st.Uid) != os.Geteuid() || int(st.Gid) != gid {
		t.Errorf("mode %#o, owner %d, group %d; want 0660, group %d", info.Mode().Perm(), st.Uid, st.Gid, gid)
	}
	if _, err := ListenShared(path, gid); err == nil {
		t.Error("a second ListenShared() = nil; want an error")
	}
}
