package shutdown

import "encoding/json"

// UnmarshalJSON also reads the state of a version that knew two waves only, so that an update of
// evictd in the middle of a shutdown asks no pod too early.
func (s *State) UnmarshalJSON(content []byte) error {
	type state State
	saved := struct {
		*state
		SecondWaveAsked bool `json:"second"`
	}{state: (*state)(s)}
	if err := json.Unmarshal(content, &saved); err != nil {
		return err
	}
	if saved.SecondWaveAsked {
		s.Wave = max(s.Wave, secondWave)
	}
	return nil
}

// UnmarshalJSON also reads the pod of such a state.
func (p *PodState) UnmarshalJSON(content []byte) error {
	type podState PodState
	saved := struct {
		*podState
		SecondWave bool `json:"last"`
	}{podState: (*podState)(p)}
	if err := json.Unmarshal(content, &saved); err != nil {
		return err
	}
	if saved.SecondWave {
		p.Wave = max(p.Wave, secondWave)
	}
	return nil
}
