package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options configure a node. Only Dir is required.
type Options struct {
	// Dir is the node's directory. It must be empty or not exist. Its path must be short, because it is part of
	// the path of a unix socket.
	Dir string
	// Log receives a line per event. With nil, events are not logged.
	Log io.Writer
	// Cache is the directory with binaries that the system lacks; "" is CacheDir.
	Cache string
	// Hog is the executable of the images. "" means the one in EVICTD_TEST_PROGRAMS; if that is not set, Start
	// compiles tests/hog, which needs Go and takes a second.
	Hog string
	// CgroupDriver creates the cgroups of the pods; "" is the value of EVICTD_TEST_CGROUP_DRIVER, else Cgroupfs.
	CgroupDriver Driver
	// MemoryLimit is the limit of all pods together, in bytes. 0 is MemAvailable minus 5 GiB, or half of
	// MemAvailable if less than 3 GiB would be left for the pods.
	MemoryLimit int64
	// PIDLimit is the process limit of all pods together; 0 is no limit.
	PIDLimit int64
	// AppArmor lets containerd confine containers with its profile. Start does not check that the kernel has AppArmor and
	// that there is an apparmor_parser: containerd does not confine without them.
	AppArmor bool
}

// Node is a private containerd. It is safe for concurrent use.
type Node struct {
	lock     *machineLock
	record   record
	binaries Binaries
	tree     tree
	capacity int64 // MemTotal
	// chroot is the root directory of containerd, "" for this process's own: see bindRoot.
	chroot string
	log    *log.Logger

	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient

	mu     sync.Mutex // guards daemon, and serializes KillRuntime and RestartRuntime
	daemon *daemon

	close func() error
}

const (
	socketName = "containerd.sock"
	logName    = "containerd.log"
	// socketMax is the size of sun_path without the terminating zero and without .ttrpc, which containerd appends
	// for a second socket.
	socketMax = 108 - 1 - len(".ttrpc")
)

// Check returns nil if a node can be started here, else an error that names what is missing and reads well after
// "needs". cache is Options.Cache; the cgroup driver is taken from the environment. The error is ErrNoContainerd if
// Fetch may help.
func Check(cache string) error {
	if os.Geteuid() != 0 {
		return errors.New("root")
	}
	if _, err := Find(cache); err != nil {
		return fmt.Errorf("containerd and runc: %w", err)
	}
	t, err := mountedTree()
	if err != nil {
		return err
	}
	if _, err := t.withController("memory"); err != nil {
		return err
	}
	// An invalid driver name is not a missing prerequisite: Start refuses it.
	if driver, err := Driver("").resolve(); err == nil {
		if err := driver.check(t); err != nil {
			return err
		}
	}
	for _, h := range t {
		if err := unix.Access(h.mount, unix.W_OK); err != nil {
			return fmt.Errorf("a writable %s: %w", h.mount, err)
		}
	}
	return nil
}

// Start starts containerd, imports the images and creates the pods' parent cgroups. A machine has one node at a time:
// Start waits until the previous one is closed, even if this process started it. It removes abandoned nodes. ctx
// bounds only the start. On error Start removes everything that it created.
func Start(ctx context.Context, o Options) (*Node, error) {
	lock, err := lockMachine(ctx, func() {
		if o.Log != nil {
			fmt.Fprintln(o.Log, "waiting for another node on this machine to end")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	if err := sweepAbandoned(); err != nil {
		return nil, errors.Join(fmt.Errorf("start node: remove abandoned nodes: %w", err), lock.Close())
	}
	n, err := start(ctx, o)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	n.lock = lock
	return n, nil
}

// start is Start for a caller that has the machine's lock.
func start(ctx context.Context, o Options) (_ *Node, err error) {
	began := time.Now()
	n := &Node{log: log.New(io.Discard, "", 0)}
	if o.Log != nil {
		n.log.SetOutput(o.Log)
	}
	if n.binaries, err = Find(o.Cache); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	if n.tree, err = mountedTree(); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	driver, err := o.CgroupDriver.resolve()
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	if err := driver.check(n.tree); err != nil {
		return nil, fmt.Errorf("start node: needs %w", err)
	}
	if n.record, err = prepareDir(o.Dir, driver, n.tree); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	n.close = sync.OnceValue(n.teardown)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start node: %w", err), n.Close())
		}
	}()
	if err := n.makeCgroups(o.MemoryLimit, o.PIDLimit); err != nil {
		return nil, err
	}
	if n.chroot, err = bindRoot(filepath.Join(n.record.sideDir(), rootDirName)); err != nil {
		return nil, err
	}
	if err := n.configure(o.AppArmor); err != nil {
		return nil, err
	}
	if err := n.connect(); err != nil {
		return nil, err
	}
	hog, built := o.Hog, make(chan error, 1)
	if hog == "" {
		prebuilt, err := Prebuilt("hog")
		if err != nil {
			return nil, err
		}
		if prebuilt != nil {
			hog = prebuilt[0]
		}
	}
	if hog == "" {
		hog = n.path("hog")
		go func() { built <- BuildHog(ctx, hog) }() // in parallel with containerd's start
	} else {
		built <- nil
	}
	if err := errors.Join(n.RestartRuntime(ctx), <-built); err != nil {
		return nil, err
	}
	if err := n.importImages(ctx, hog); err != nil {
		return nil, err
	}
	n.log.Printf("node %s is up after %v", n.record.ID, since(began))
	return n, nil
}

const gibibyte = 1 << 30

// makeCgroups creates the cgroup of containerd and those that a kubelet would create, and limits the pods.
func (n *Node) makeCgroups(limit, pids int64) error {
	info, err := readMeminfo()
	if err != nil {
		return err
	}
	n.capacity = info.total
	if limit == 0 {
		if limit = info.available - 5*gibibyte; limit < 3*gibibyte {
			limit = info.available / 2
		}
	}
	if err := n.tree.make(n.system()); err != nil {
		return err
	}
	if err := n.makePods(n.Kubepods(), limit, pids); err != nil {
		return err
	}
	for _, class := range []QoS{Burstable, BestEffort} {
		if err := n.makePods(n.qosCgroup(class), 0, 0); err != nil {
			return err
		}
	}
	n.log.Printf("cgroup %s, driver %s, memory limit of all pods %d MiB", n.record.podRoot(), n.record.Driver, limit>>20)
	return nil
}

func (n *Node) configure(appArmor bool) error {
	var st unix.Statfs_t
	if err := unix.Statfs(n.Dir(), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", n.Dir(), err)
	}
	snapshotter := "overlayfs"
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		snapshotter = "native" // overlayfs can't have its upper directory on overlayfs
	}
	restrict, err := lacksSysResource()
	if err != nil {
		return err
	}
	config := containerdConfig(n.Dir(), n.binaries, snapshotter, restrict, n.record.Driver, appArmor)
	if err := os.WriteFile(n.path("containerd.toml"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("write containerd's configuration: %w", err)
	}
	return nil
}

func (n *Node) connect() error {
	conn, err := grpc.NewClient(n.Endpoint(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// containerd is local, and tests kill and restart it, so reconnect quickly.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	n.conn, n.runtime, n.images = conn, cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	return nil
}

// AddImage imports an image that has one file of the given size and nothing to run.
func (n *Node) AddImage(ctx context.Context, name string, bytes int64) error {
	archive, err := dataArchive(name, bytes)
	if err != nil {
		return err
	}
	return n.importArchive(ctx, archive, name)
}

// ImportImage imports the image in a file, as ctr image import does. It fails if the file has no image of that name.
func (n *Node) ImportImage(ctx context.Context, file, name string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	defer f.Close()
	return n.importArchive(ctx, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	}, name)
}

// Images lists the names of the node's images.
func (n *Node) Images(ctx context.Context) ([]string, error) {
	answer, err := n.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var names []string
	for _, i := range answer.GetImages() {
		names = append(names, i.GetRepoTags()...)
	}
	slices.Sort(names)
	return names, nil
}

func (n *Node) importImages(ctx context.Context, hog string) error {
	executable, err := os.ReadFile(hog)
	if err != nil {
		return fmt.Errorf("read the hog: %w", err)
	}
	images, err := imageArchive(executable)
	if err != nil {
		return err
	}
	return n.importArchive(ctx, images, PauseImage, HogImage)
}

func (n *Node) importArchive(ctx context.Context, images archive, names ...string) error {
	cmd := n.SystemCommand(ctx, n.binaries.Ctr, "--address", n.Socket(), "--namespace", namespace, "images", "import", "-")
	read, write := io.Pipe()
	go func() { write.CloseWithError(images(write)) }()
	cmd.Stdin = read
	out, err := cmd.CombinedOutput()
	read.Close() // unblocks the writer if ctr exited early
	if err != nil {
		return fmt.Errorf("import images: %w: %s", err, strings.TrimSpace(string(out)))
	}
	// containerd's CRI plugin updates its image list asynchronously, on an event.
	for _, image := range names {
		for {
			answer, err := n.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
			if err != nil {
				return fmt.Errorf("find image %s: %w", image, err)
			}
			if answer.GetImage() != nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("find image %s: %w", image, context.Cause(ctx))
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return nil
}

// Close removes the node's processes, mounts, cgroups and files. It is idempotent.
func (n *Node) Close() error { return n.close() }

func (n *Node) teardown() error {
	began := time.Now()
	n.KillRuntime()
	var closed error
	if n.conn != nil {
		closed = n.conn.Close()
	}
	if err := errors.Join(closed, n.record.sweep(), n.lock.Close()); err != nil {
		return fmt.Errorf("close node: %w", err)
	}
	n.log.Printf("node %s removed after %v", n.record.ID, since(began))
	return nil
}

// Leftovers describes what exists of the node: processes and cgroups below its root, mounts and files below its
// directory, and its record. After Close the list is empty.
func (n *Node) Leftovers() []string { return n.record.leftovers() }

// Dir returns the node's directory, with symbolic links resolved.
func (n *Node) Dir() string { return n.record.Dir }

func (n *Node) path(elem ...string) string {
	return filepath.Join(append([]string{n.Dir()}, elem...)...)
}

// Socket returns the path of the CRI socket.
func (n *Node) Socket() string { return n.path(socketName) }

// Endpoint returns the CRI socket as a kubelet's containerRuntimeEndpoint.
func (n *Node) Endpoint() string { return "unix://" + n.Socket() }

// CgroupRoot returns the private root, which would be the "cgroupRoot" of a kubelet on this node. With the systemd
// driver the pods are in the slice of that name.
func (n *Node) CgroupRoot() string { return n.record.cgroup() }

// Kubepods returns the cgroup of all pods.
func (n *Node) Kubepods() string { return n.ChildCgroup(n.record.podRoot(), "kubepods") }

// ChildCgroup returns the path of a child cgroup for pods, as this node's driver names it. It need not exist.
func (n *Node) ChildCgroup(parent, name string) string { return n.record.Driver.child(parent, name) }

// Driver returns the cgroup driver of the pods.
func (n *Node) Driver() Driver { return n.record.Driver }

func (n *Node) system() string { return n.CgroupRoot() + "/system" }

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }
