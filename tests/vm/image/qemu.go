package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// QEMU is the emulator that boots the machines.
type QEMU struct {
	// Program is its path, or a name in PATH.
	Program string
	// Args come before all others: they name the directories of its firmware.
	Args []string
}

// leastMajor and leastMinor are of the first QEMU that emulates patched instructions
// right. An older one may go on with the translation of an int3 after another
// processor has taken it back, and the kernel, which no longer knows of it, panics
// ("Oops: int3"). QEMU 8.1 locks pages before translation (accel/tcg, deba78709ae8).
// Linux patches while it boots and whenever tracing is switched on or off: 6.12's
// __schedule and try_to_wake_up then, which always run on the other processor.
const leastMajor, leastMinor = 8, 1

// newQEMU is where Debian 12 has a newer one than its own 7.2.
var newQEMU = struct {
	Suite    string
	Packages []string
}{suite + "-backports", []string{"qemu-system-x86", "qemu-system-data"}}

// QEMU returns the installed emulator, or one in the cache where that is too old. A
// first call then downloads it (13 MB). It uses the libraries of the installed one.
func (c *Cache) QEMU(ctx context.Context) (QEMU, error) {
	const installed = "qemu-system-x86_64"
	said, err := output(command(ctx, installed, "--version"))
	if err != nil {
		return QEMU{}, err
	}
	if patchesRight(said) {
		return QEMU{Program: installed}, nil
	}
	dir, err := c.entry(ctx, "qemu-"+hash(newQEMU), "a newer QEMU", func(ctx context.Context, dir string) error {
		source, err := FindSource("/etc/apt")
		if err != nil {
			return err
		}
		return buildQEMU(ctx, source, dir)
	})
	if err != nil {
		return QEMU{}, err
	}
	return unpackedQEMU(dir), nil
}

// unpackedQEMU is the one in dir. The firmware of the PC is in a package of its own,
// which the installed QEMU needs as well.
func unpackedQEMU(dir string) QEMU {
	return QEMU{
		Program: filepath.Join(dir, "usr/bin/qemu-system-x86_64"),
		Args:    []string{"-L", filepath.Join(dir, "usr/share/qemu"), "-L", "/usr/share/seabios"},
	}
}

// buildQEMU unpacks the packages in dir.
func buildQEMU(ctx context.Context, source Source, dir string) error {
	work := filepath.Join(dir, "work")
	a, err := openAptArchive(ctx, source, []string{newQEMU.Suite}, work)
	if err != nil {
		return err
	}
	for _, pkg := range newQEMU.Packages {
		deb, err := a.download(ctx, pkg)
		if err != nil {
			return err
		}
		if _, err := output(command(ctx, "dpkg-deb", "-x", deb, dir)); err != nil {
			return err
		}
	}
	said, err := output(command(ctx, unpackedQEMU(dir).Program, "--version"))
	if err != nil {
		return err
	}
	if !patchesRight(said) {
		return fmt.Errorf("%s has no QEMU %d.%d or newer: %s", newQEMU.Suite, leastMajor, leastMinor, said)
	}
	return os.RemoveAll(work)
}

// versionLine is the first that QEMU says of itself:
//
//	QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)
var versionLine = regexp.MustCompile(`^QEMU emulator version (\d+)\.(\d+)`)

// patchesRight reports whether a QEMU is new enough, by what it says to --version.
func patchesRight(said string) bool {
	match := versionLine.FindStringSubmatch(said)
	if match == nil {
		return false
	}
	major, err := strconv.Atoi(match[1])
	minor, errMinor := strconv.Atoi(match[2])
	return err == nil && errMinor == nil && (major > leastMajor || major == leastMajor && minor >= leastMinor)
}
