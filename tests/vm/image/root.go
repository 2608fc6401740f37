package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// suite is the Debian release of the machines.
const suite = "bookworm"

// recipe determines the content of a root. Its hash is in the name of the cache entry.
type recipe struct {
	Suite    string
	Size     string // of the file system; the file is sparse
	Packages []string
	// Files are written with these contents.
	Files map[string]string
	// Disabled units are not started at boot, masked ones can't be started.
	Disabled, Masked []string
}

var rootRecipe = recipe{
	Suite: suite,
	Size:  "4G",
	Packages: []string{
		"systemd", "systemd-sysv", "udev", "kmod", "dbus", "libpam-systemd", // systemd with logind
		"containerd", "runc", "apparmor", // evictd's runtime, and what it needs to confine pods
		"systemd-oomd", "earlyoom", // the benchmark's other daemons
		"ipmitool", "stress-ng", "procps", "iproute2", "nftables", // programs that tests run
		"nfs-kernel-server", "xfsprogs", "btrfs-progs", // filesystems of tests
	},
	Files: map[string]string{
		"etc/hostname": "evictd-vm\n",
		"etc/hosts":    "127.0.0.1 localhost evictd-vm\n",
		"etc/fstab":    "",
		// The journal stays in memory: the disk is discarded too.
		"etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nForwardToConsole=no\nRateLimitBurst=0\n",
		// Fail early if a stop hangs.
		"etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStopSec=20s\n",
		// For the shell. The runner's machines have no getty (systemd.getty_auto=no).
		"etc/systemd/system/serial-getty@ttyS0.service.d/login.conf": "[Service]\nExecStart=\nExecStart=-/sbin/agetty --autologin root --keep-baud 115200 - xterm\n",
		"root/.hushlogin": "",
	},
	Disabled: []string{
		"apparmor.service", // it loads Debian's profiles, of which the machine runs no program
		"containerd.service", "systemd-oomd.service", "systemd-oomd.socket", "earlyoom.service",
		"nfs-server.service", "nfs-client.target", "nfs-blkmap.service", "rpcbind.service", "rpcbind.socket",
	},
	Masked: []string{
		// Maintenance that a discarded machine does not need.
		"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
		"fstrim.timer", "man-db.timer", "systemd-timesyncd.service", "systemd-firstboot.service", "systemd-sysusers.service",
		"systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-random-seed.service",
		"systemd-journal-flush.service", "systemd-pstore.service", "systemd-remount-fs.service", "nftables.service",
		"networking.service", "systemd-networkd-wait-online.service", "getty@tty1.service",
		// Modules are loaded on demand.
		"systemd-modules-load.service", "modprobe@configfs.service", "modprobe@dm_mod.service", "modprobe@drm.service",
		"modprobe@efi_pstore.service", "modprobe@fuse.service", "modprobe@loop.service", "sys-fs-fuse-connections.mount",
		"sys-kernel-config.mount", "sys-kernel-debug.mount", "proc-sys-fs-binfmt_misc.automount",
	},
}

// hash returns the hash of a recipe for the name of an entry.
func hash(recipe any) string {
	b, err := json.Marshal(recipe)
	if err != nil {
		panic(err) // a recipe has only strings
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:12]
}

// Root returns the image of the root file system, ext4. The first call builds it, which needs root, debootstrap, a
// minute, and access to the archive. A machine must not write to it.
func (c *Cache) Root(ctx context.Context) (file string, err error) {
	dir, err := c.entry(ctx, "root-"+hash(rootRecipe), "a Debian root", func(ctx context.Context, dir string) error {
		source, err := FindSource("/etc/apt")
		if err != nil {
			return err
		}
		return rootRecipe.build(ctx, source, dir)
	})
	return filepath.Join(dir, "root.img"), err
}

const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// build builds dir/root.img.
func (r recipe) build(ctx context.Context, source Source, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("debootstrap needs root")
	}
	keys := source.SignedBy
	if keys == "" {
		keys = debianKeys
	}
	root := filepath.Join(dir, "root")
	// The kernel removes debootstrap's mounts with its mount namespace, and kills its processes with its PID namespace.
	cmd := command(ctx, "debootstrap", "--variant=minbase", "--keyring="+keys,
		"--include="+strings.Join(r.Packages, ","), r.Suite, root, source.URI)
	cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	if _, err := output(cmd); err != nil {
		return err
	}
	if err := r.write(root); err != nil {
		return err
	}
	for _, args := range [][]string{
		append([]string{"disable"}, r.Disabled...),
		append([]string{"mask"}, r.Masked...),
		{"set-default", "multi-user.target"},
	} {
		if _, err := output(command(ctx, "chroot", append([]string{root, "systemctl", "--quiet"}, args...)...)); err != nil {
			return err
		}
	}
	if _, err := output(command(ctx, "chroot", root, "passwd", "--quiet", "--delete", "root")); err != nil {
		return err
	}
	if err := mkfs(ctx, root, filepath.Join(dir, "root.img"), r.Size); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// write writes the files of the recipe, and removes files that only a package manager needs.
func (r recipe) write(root string) error {
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(r.Files[name]), 0o644); err != nil {
			return err
		}
	}
	for _, pattern := range []string{"var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "usr/share/doc/*", "usr/share/locale/*"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := os.RemoveAll(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
