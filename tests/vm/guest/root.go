package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// newRoot is where the root disk is mounted until it becomes the root.
const newRoot = "/root"

const (
	modulesFile = "/run/modprobe.d/vm.conf"
	// unwanted are modules that udev would load for unused devices. Some have a self-test of seconds.
	unwanted = "aesni_intel ghash_clmulni_intel crct10dif_pclmul crc32_pclmul crc32c_intel sha1_ssse3 sha256_ssse3 " +
		"sha512_ssse3 kvm kvm_amd kvm_intel ata_piix ata_generic qemu_fw_cfg serio_raw"
)

const (
	guestFile = "/run/vm/guest"
	unitFile  = "/run/systemd/system/vm-guest.service"
	sliceFile = "/run/systemd/system/vmguest.slice"
	unitLink  = "/run/systemd/system/multi-user.target.wants/vm-guest.service"
)

// unit starts the runner after basic.target. If the runner exits, the unit powers the machine off, so that the host
// notices immediately, with the runner's error on the console. Without default dependencies, a shutdown stops neither
// the runner nor its slice, so that events are sent until the end.
const unit = `[Unit]
Description=Runner of the virtual machine's plan
DefaultDependencies=no
Wants=sysinit.target systemd-logind.service
After=sysinit.target basic.target dbus.service systemd-logind.service
ConditionPathExists=` + protocol.PlanFile + `
[Service]
Type=exec
ExecStart=` + guestFile + `
ExecStopPost=-/bin/systemctl --force --force poweroff
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
Slice=vmguest.slice
OOMScoreAdjust=-1000
`

const slice = `[Unit]
Description=The runner's
DefaultDependencies=no
`

// startRoot is process 1 of the initial file system: it mounts the disks and executes the init of the root disk.
func startRoot() error {
	for _, m := range []struct{ kind, dir string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := mountDisks(); err != nil {
		return err
	}
	if err := installRunner(); err != nil {
		return err
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("read the command line: %w", err)
	}
	// Free the memory of the initial file system.
	if err := errors.Join(os.Remove("/init"), os.RemoveAll("/modules")); err != nil {
		return fmt.Errorf("empty the initial file system: %w", err)
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	// As switch_root(8) does: the root of the initial file system can't be unmounted, only covered.
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	init := initOf(string(cmdline))
	return fmt.Errorf("execute %s: %w", init, unix.Exec(init, []string{init}, []string{"HOME=/", "TERM=linux", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}))
}

// initOf returns the init program of a kernel command line.
func initOf(cmdline string) string {
	init := "/sbin/init"
	for field := range strings.FieldsSeq(cmdline) {
		if file, ok := strings.CutPrefix(field, "init="); ok {
			init = file
		}
	}
	return init
}

// loadModules loads the modules in a directory in the order of their names.
func loadModules(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return fmt.Errorf("find modules: %w", err)
	}
	slices.Sort(files)
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("load module: %w", err)
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// mountDisks mounts the root disk and, below it, the others.
func mountDisks() error {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return fmt.Errorf("read release: %w", err)
	}
	for _, m := range []struct {
		disk, dir string
		flags     uintptr
	}{
		{"root", newRoot, unix.MS_NOATIME},
		{"modules", newRoot + "/usr/lib/modules/" + strings.TrimSpace(string(release)), unix.MS_RDONLY},
		{"payload", newRoot + protocol.PayloadDir, unix.MS_RDONLY},
	} {
		device, err := diskOf(m.disk, 10*time.Second)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
		if err := unix.Mount(device, m.dir, "ext4", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", device, m.dir, err)
		}
	}
	return nil
}

// diskOf waits until the driver has found the disk with a serial number, and returns its device.
func diskOf(serial string, timeout time.Duration) (string, error) {
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		files, err := filepath.Glob("/sys/block/*/serial")
		if err != nil {
			return "", fmt.Errorf("find disk %s: %w", serial, err)
		}
		for _, file := range files {
			if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(file)), nil
			}
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("find disk %s: none of %d has this serial number", serial, len(files))
		}
	}
}

// installRunner mounts /run, which systemd keeps, and writes to it this program, its unit, and a list of modules that
// udev must not load.
func installRunner() error {
	if err := unix.Mount("tmpfs", newRoot+"/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	program, err := os.ReadFile("/init")
	if err != nil {
		return fmt.Errorf("install the runner: %w", err)
	}
	for _, dir := range []string{filepath.Dir(guestFile), filepath.Dir(unitLink), filepath.Dir(modulesFile)} {
		if err := os.MkdirAll(newRoot+dir, 0o755); err != nil {
			return fmt.Errorf("install the runner: %w", err)
		}
	}
	var blacklist strings.Builder
	for module := range strings.FieldsSeq(unwanted) {
		blacklist.WriteString("blacklist " + module + "\n")
	}
	err = errors.Join(
		os.WriteFile(newRoot+modulesFile, []byte(blacklist.String()), 0o644),
		os.WriteFile(newRoot+guestFile, program, 0o755),
		os.WriteFile(newRoot+unitFile, []byte(unit), 0o644),
		os.WriteFile(newRoot+sliceFile, []byte(slice), 0o644),
		os.Symlink(unitFile, newRoot+unitLink),
	)
	if err != nil {
		return fmt.Errorf("install the runner: %w", err)
	}
	return nil
}
