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

// suite is the release of Debian in the machines.
const suite = "bookworm"

// recipe is all that makes a root what it is. Its hash is in the name of the entry.
type recipe struct {
	Suite    string
	Size     string // of the file system; the file is sparse
	Packages []string
	// Files are written, with these texts.
	Files map[string]string
	// Disabled units are not started unless asked for, masked ones never.
	Disabled, Masked []string
}

var rootRecipe = recipe{
	Suite: suite,
	Size:  "4G",
	Packages: []string{
		"systemd", "systemd-sysv", "udev", "kmod", "dbus", "libpam-systemd", // a booted system with logind
		"containerd", "runc", // what evictd works with
		"systemd-oomd", "earlyoom", // what would run in its place
		"ipmitool", "stress-ng", "procps", "iproute2", "nftables", // what tests call
		"nfs-kernel-server", "xfsprogs", "btrfs-progs", // for their filesystems
	},
	Files: map[string]string{
		"etc/hostname": "evictd-vm\n",
		"etc/hosts":    "127.0.0.1 localhost evictd-vm\n",
		"etc/fstab":    "",
		// The journal on the disk would only cost time, and be lost as well.
		"etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nForwardToConsole=no\nRateLimitBurst=0\n",
		// A stop that hangs is to be seen, not waited for.
		"etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStopSec=20s\n",
		// For the shell. The runner's machines have no getty (systemd.getty_auto=no).
		"etc/systemd/system/serial-getty@ttyS0.service.d/login.conf": "[Service]\nExecStart=\nExecStart=-/sbin/agetty --autologin root --keep-baud 115200 - xterm\n",
		"root/.hushlogin": "",
	},
	Disabled: []string{
		"containerd.service", "systemd-oomd.service", "systemd-oomd.socket", "earlyoom.service",
		"nfs-server.service", "nfs-client.target", "nfs-blkmap.service", "rpcbind.service", "rpcbind.socket",
	},
	Masked: []string{
		// Work for a machine that is kept.
		"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
		"fstrim.timer", "man-db.timer", "systemd-timesyncd.service", "systemd-firstboot.service", "systemd-sysusers.service",
		"systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-random-seed.service",
		"systemd-journal-flush.service", "systemd-pstore.service", "systemd-remount-fs.service", "nftables.service",
		"networking.service", "systemd-networkd-wait-online.service", "getty@tty1.service",
		// Modules are loaded when something asks for them.
		"systemd-modules-load.service", "modprobe@configfs.service", "modprobe@dm_mod.service", "modprobe@drm.service",
		"modprobe@efi_pstore.service", "modprobe@fuse.service", "modprobe@loop.service", "sys-fs-fuse-connections.mount",
		"sys-kernel-config.mount", "sys-kernel-debug.mount", "proc-sys-fs-binfmt_misc.automount",
	},
}

// hash names what was made by a recipe.
func hash(recipe any) string {
	b, err := json.Marshal(recipe)
	if err != nil {
		panic(err) // recipes are of strings
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:12]
}

// Root returns the image of the root file system, ext4, which a first call makes: it needs root, debootstrap, a
// minute, and a network or at least an archive. A machine must not write to it.
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

// build makes dir/root.img.
func (r recipe) build(ctx context.Context, source Source, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("debootstrap needs root")
	}
	keys := source.SignedBy
	if keys == "" {
		keys = debianKeys
	}
	root := filepath.Join(dir, "root")
	// The mounts that debootstrap makes go with its mount namespace, what it starts with its pid namespace.
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

// write makes the files, and removes what a package manager alone would miss.
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
