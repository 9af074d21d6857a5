#!/bin/bash
#PBS -N <<name>>
#PBS -l walltime=<<hh_mm>>:00
#PBS -j oe
#PBS -o <<outputs>>/
<<directives>>
<<body>>
