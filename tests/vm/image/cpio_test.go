package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestArchive(t *testing.T) {
	var a archive
	a.add("dev", cpioDir, nil)
	a.add("init", cpioFile, []byte("#!/"))
	got := string(a.close())
	// Each header has 110 bytes; with its name and a zero it is padded to four, and so is the content.
	want := "070701" + "00000001" + "000041ED" + "00000000" + "00000000" + "00000002" + "00000000" + "00000000" +
		"00000000" + "00000000" + "00000000" + "00000000" + "00000004" + "00000000" + "dev\x00\x00\x00" +
		"070701" + "00000002" + "000081ED" + "00000000" + "00000000" + "00000001" + "00000000" + "00000003" +
		"00000000" + "00000000" + "00000000" + "00000000" + "00000005" + "00000000" + "init\x00\x00" + "#!/\x00" +
		"070701" + "00000003" + "00000000" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" +
		"00000000" + "00000000" + "00000000" + "00000000" + "0000000B" + "00000000" + "TRAILER!!!\x00\x00\x00\x00"
	if got != want {
		t.Errorf("archive = %q; want %q", got, want)
	}
}

func TestInitrd(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"guest": "GUEST", "boot/00-virtio.ko": "FIRST", "boot/01-virtio_blk.ko": "SECOND"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "initrd")
	if err := (Kernel{dir: dir}).Initrd(filepath.Join(dir, "guest"), file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rest := string(b)
	for _, want := range []string{"init\x00", "GUEST", "modules/00-virtio.ko\x00", "FIRST", "modules/01-virtio_blk.ko\x00", "SECOND", trailer} {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Fatalf("initrd lacks %q, or has it out of order", want)
		}
		rest = after
	}
	if err := (Kernel{dir: dir}).Initrd(filepath.Join(dir, "none"), file); err == nil {
		t.Error("Initrd without a program succeeds; want an error")
	}
}
