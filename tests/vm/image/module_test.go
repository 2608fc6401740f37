package image

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// modulesDep is the modules.dep of Linux 6.1.0-50-cloud-amd64, shortened.
const modulesDep = `kernel/fs/overlayfs/overlay.ko:
kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/char/virtio_console.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_pci_legacy_dev.ko kernel/drivers/virtio/virtio_pci_modern_dev.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
`

func TestLoadOrder(t *testing.T) {
	for _, tt := range []struct {
		name, dep, builtin string
		modules, want      []string
	}{
		{"each after what it needs, and once", modulesDep, "", []string{"virtio_pci", "virtio_blk"}, []string{
			"kernel/drivers/virtio/virtio.ko", "kernel/drivers/virtio/virtio_ring.ko", "kernel/drivers/virtio/virtio_pci_modern_dev.ko",
			"kernel/drivers/virtio/virtio_pci_legacy_dev.ko", "kernel/drivers/virtio/virtio_pci.ko", "kernel/drivers/block/virtio_blk.ko",
		}},
		{"built in", "kernel/drivers/block/virtio_blk.ko.xz:\n", "kernel/drivers/virtio/virtio_pci.ko\n", []string{"virtio_pci", "virtio_blk"}, []string{
			"kernel/drivers/block/virtio_blk.ko.xz",
		}},
		{"a dash for an underscore", "kernel/a/virtio-blk.ko:\n", "", []string{"virtio_blk"}, []string{"kernel/a/virtio-blk.ko"}},
		{"missing", modulesDep, "kernel/x/y.ko\n", []string{"virtio_scsi"}, nil},
	} {
		got, err := loadOrder(tt.dep, tt.builtin, tt.modules)
		if (err != nil) != (tt.want == nil) || !cmp.Equal(got, tt.want) {
			t.Errorf("%s: loadOrder = %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

func TestCopyBootModules(t *testing.T) {
	modules, dir := t.TempDir(), filepath.Join(t.TempDir(), "boot")
	files := map[string]string{
		"modules.dep":                                    modulesDep,
		"modules.builtin":                                "",
		"kernel/drivers/virtio/virtio.ko":                "virtio",
		"kernel/drivers/virtio/virtio_ring.ko":           "ring",
		"kernel/drivers/block/virtio_blk.ko":             "blk",
		"kernel/drivers/char/virtio_console.ko":          "console",
		"kernel/drivers/virtio/virtio_pci.ko":            "pci",
		"kernel/drivers/virtio/virtio_pci_legacy_dev.ko": "legacy",
		"kernel/drivers/virtio/virtio_pci_modern_dev.ko": "modern",
	}
	for name, text := range files {
		file := filepath.Join(modules, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyBootModules(t.Context(), modules, dir); err != nil {
		t.Fatal(err)
	}
	var got []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{
		"00-virtio.ko", "01-virtio_ring.ko", "02-virtio_pci_modern_dev.ko", "03-virtio_pci_legacy_dev.ko", "04-virtio_pci.ko",
		"05-virtio_blk.ko", "06-virtio_console.ko",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("modules differ (-want +got):\n%s", diff)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "05-virtio_blk.ko")); err != nil || string(b) != "blk" {
		t.Errorf("virtio_blk = %q, %v; want %q", b, err, "blk")
	}
	if err := os.Remove(filepath.Join(modules, "modules.dep")); err != nil {
		t.Fatal(err)
	}
	if err := copyBootModules(context.Background(), modules, dir+"2"); err == nil {
		t.Error("copyBootModules without modules.dep succeeds; want an error")
	}
}
