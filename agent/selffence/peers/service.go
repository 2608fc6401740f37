package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

const (
	// maxPerSecond is how many datagrams are read in a second; more are dropped.
	maxPerSecond = 10_000
	// askChunk questions are sent at once, with askPause between: the answers must fit into the socket's buffer.
	askChunk, askPause = 50, 20 * time.Millisecond
	readBuffer         = 1 << 20
	// retryInterval is the time to the next attempt to read the keys or to listen, and keyInterval to the next look at
	// the keys.
	retryInterval, keyInterval = 10 * time.Second, 30 * time.Second
)

// Options configure a Service.
type Options struct {
	// Node is the name of this node.
	Node string
	// Listen is the address for datagrams. The other nodes have the same port.
	Listen string
	// KeyFile has the keys. StateFile keeps the list, and should be lost at a reboot.
	KeyFile, StateFile string
	// Uptime is the clock: CLOCK_BOOTTIME.
	Uptime func() (time.Duration, error)
	// Reach returns whether this node reaches the API server.
	Reach func() selffence.Reach
	// Changed is called when a majority begins, and each selffence.AskInterval while this node asks. It must not wait.
	Changed func()
	Log     *slog.Logger
}

// Service asks and answers. Its methods are safe for concurrent use.
type Service struct {
	o Options

	mu     sync.Mutex
	keys   [][]byte
	list   *List
	index  map[string]netip.Addr // of list
	tally  tally
	asking bool
	agreed bool // a majority was there at the last count
	second time.Duration
	read   int // datagrams in that second
}

// New returns a Service. It opens nothing.
func New(o Options) *Service { return &Service{o: o, tally: newTally()} }

// SetNodes sets the list of all nodes, which the API server has sent for a request that began at a time since the boot.
func (s *Service) SetNodes(nodes []Node, at time.Duration) error {
	l := &List{At: at, Read: time.Now(), Nodes: nodes}
	if err := l.check(); err != nil {
		return err
	}
	s.use(l)
	if err := l.save(s.o.StateFile); err != nil {
		return fmt.Errorf("save the list of nodes: %w", err)
	}
	return nil
}

func (s *Service) use(l *List) {
	index := make(map[string]netip.Addr, len(l.Nodes))
	for _, n := range l.Nodes {
		index[n.Name] = n.Address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.index = l, index
	s.tally.keep(func(node string) bool { _, ok := index[node]; return ok })
}

// Count returns the present count.
func (s *Service) Count() selffence.Count {
	now, err := s.o.Uptime()
	if err != nil {
		return selffence.Count{ListAge: -1}
	}
	reach := s.o.Reach()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.count(reach, now)
	s.agreed = c.Majority()
	return c
}

func (s *Service) count(reach selffence.Reach, now time.Duration) selffence.Count {
	c := selffence.Count{ListAge: s.list.age(now)}
	if c.ListAge < 0 {
		return c
	}
	c.Nodes = len(s.list.Nodes)
	if !reach.Asks() {
		return c
	}
	c.At, c.CannotReach = now, s.tally.count(now)
	if _, listed := s.index[s.o.Node]; listed && reach.Cannot() {
		c.CannotReach++
	}
	return c
}

// Run asks and answers until ctx ends.
func (s *Service) Run(ctx context.Context) {
	if now, err := s.o.Uptime(); err == nil {
		l, err := load(s.o.StateFile, now)
		if err != nil {
			s.o.Log.Warn("the saved list of nodes cannot be used; peers are asked after the next list", "error", err)
		} else if l != nil {
			s.use(l)
		}
	}
	last := ""
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last {
			last = text
			s.o.Log.Warn("peers are not asked and not answered; trying again", "error", err)
		}
		if !sleep(ctx, retryInterval) {
			return
		}
	}
}

// serve listens, asks and answers until that fails.
func (s *Service) serve(ctx context.Context) error {
	if err := s.loadKeys(); err != nil {
		return err
	}
	address, err := net.ResolveUDPAddr("udp", s.o.Listen)
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	_ = conn.SetReadBuffer(readBuffer) // the default holds fewer answers
	s.o.Log.Info("answering peers", "address", conn.LocalAddr().String())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	running.Go(func() { s.askAll(ctx, conn, port) })
	running.Go(func() { s.watchKeys(ctx) })
	return s.answerAll(conn)
}

func (s *Service) loadKeys() error {
	keys, err := readKeys(s.o.KeyFile)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
	return nil
}

// watchKeys reads the keys again until ctx ends. The last ones stay in use if that fails.
func (s *Service) watchKeys(ctx context.Context) {
	last := ""
	for sleep(ctx, keyInterval) {
		text := ""
		if err := s.loadKeys(); err != nil {
			text = err.Error()
		}
		if text != last && text != "" {
			s.o.Log.Warn("the key of the peers cannot be read; the last one stays in use", "error", text)
		}
		last = text
	}
}

// answerAll reads datagrams until that fails.
func (s *Service) answerAll(conn *net.UDPConn) error {
	buffer := make([]byte, maxDatagram+1)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return err
		}
		answer, agreed := s.handle(buffer[:n])
		if answer != nil {
			// A datagram that cannot be sent is a lost one.
			_, _ = conn.WriteToUDPAddrPort(answer, from)
		}
		if agreed {
			s.o.Changed()
		}
	}
}

// handle takes a datagram. It returns the answer to a question, and whether an answer has made a majority.
func (s *Service) handle(datagram []byte) (answer []byte, agreed bool) {
	now, err := s.o.Uptime()
	if err != nil {
		return nil, false
	}
	reach := s.o.Reach()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now-s.second >= time.Second {
		s.second, s.read = now, 0
	}
	if s.read++; s.read > maxPerSecond {
		return nil, false
	}
	m, key, err := decode(datagram, s.keys)
	if err != nil || key == nil || m.to != s.o.Node || m.from == s.o.Node {
		return nil, false
	}
	if _, listed := s.index[m.from]; !listed {
		return nil, false
	}
	if m.kind == question {
		reply := message{kind: reaches, nonce: m.nonce, from: m.to, to: m.from}
		if reach.Cannot() {
			reply.kind = cannot
		}
		return reply.encode(key), false
	}
	s.tally.answer(m.from, m.nonce, m.kind)
	if s.agreed || m.kind != cannot { // counting takes a look at each vote
		return nil, false
	}
	s.agreed = s.count(reach, now).Majority()
	return nil, s.agreed
}

// askAll asks the other nodes until ctx ends.
func (s *Service) askAll(ctx context.Context, conn *net.UDPConn, port uint16) {
	for sleep(ctx, selffence.AskInterval) {
		if !s.o.Reach().Asks() {
			s.stopAsking()
			continue
		}
		s.o.Changed()
		s.round(ctx, conn, port)
	}
}

// stopAsking forgets the answers when the API server has accepted the advert.
func (s *Service) stopAsking() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking {
		s.asking, s.agreed, s.tally = false, false, newTally()
	}
}

// round asks each node once.
func (s *Service) round(ctx context.Context, conn *net.UDPConn, port uint16) {
	s.mu.Lock()
	var nodes []Node
	if s.list != nil {
		nodes = s.list.Nodes
	}
	s.asking = true
	s.mu.Unlock()
	for i, n := range nodes {
		if i%askChunk == askChunk-1 && !sleep(ctx, askPause) {
			return
		}
		if n.Name == s.o.Node || !n.Address.IsValid() {
			continue
		}
		if q := s.question(n.Name); q != nil {
			_, err := conn.WriteToUDPAddrPort(q, netip.AddrPortFrom(n.Address, port))
			if errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}
}

// question returns a new question to a node; nil if it is not in the list any more.
func (s *Service) question(node string) []byte {
	now, err := s.o.Uptime()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, listed := s.index[node]; !listed {
		return nil
	}
	return message{kind: question, nonce: s.tally.ask(node, now), from: s.o.Node, to: node}.encode(s.keys[0])
}

// sleep waits, and returns false when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
